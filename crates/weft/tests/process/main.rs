//! Real processes: nodes, clusters, and the clients that people use. One program, because each costs a build of its own; of every
//! file one test at a time (`scripts/test.sh process`), because each test runs whole nodes with their own drives.

mod attach;
mod bad_input;
mod clients;
mod clones;
mod cluster;
mod cluster_attach;
mod cluster_commands;
mod cluster_enemies;
mod cluster_locality;
mod cluster_net;
mod cluster_qos;
mod cluster_snapshots;
mod cluster_soak;
mod cluster_stops;
mod containers;
mod dedup;
mod devices;
mod documents;
mod factors;
mod flips;
mod full;
mod install;
mod kill;
mod lab_scenarios;
mod offline_damage;
mod offline_members;
mod offline_snapshots;
mod old_drive;
mod outputs;
mod pages;
mod qos;
mod read_cache;
mod snapshots;
mod starts;
mod support;
