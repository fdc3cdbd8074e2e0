//! Frontends: protocols of clients on one side, requests of the engine on the other.
//! Promises: no socket, thread or clock in here; bytes go in and bytes come out, so that the same code is driven by
//! the node's ring and by tests byte for byte.
//! Leaves to others: sockets, memory and tickets (the node), what the requests mean (the engine).

pub mod nbd;
