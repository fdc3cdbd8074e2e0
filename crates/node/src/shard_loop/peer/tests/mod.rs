//! Nodes in one process that reach each other over TCP, through a wire that can be cut; without a control plane.

mod client;
mod cluster;
mod hostile;
mod lease;
mod lost;
mod proxy;
mod stories;
