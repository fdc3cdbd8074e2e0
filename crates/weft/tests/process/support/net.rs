//! Network namespaces for nodes, joined by a bridge in a namespace of its own, and the faults of such a network.
//! Promises: no address or device outside namespaces made here; they go away with the test.

use super::tool;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

pub struct Net {
    name: String,
    nodes: u32,
}

/// The chain that drops what is to be dropped; its rules come and go.
const TABLE: &str = "table inet weft {
    chain in { type filter hook input priority 0; }
    chain out { type filter hook output priority 0; }
}";

impl Net {
    /// None where there are no namespaces for us; says why.
    pub fn make(nodes: u32) -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("wt{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let net = Self { name, nodes };
        let probe = Command::new("ip").args(["netns", "add", &net.hub()]).output();
        if !probe.as_ref().is_ok_and(|output| output.status.success()) {
            println!("skipped: no network namespaces here (it takes root and iproute2): {probe:?}");
            return None;
        }
        net.in_hub("ip link set lo up");
        net.in_hub("ip link add br0 type bridge");
        net.in_hub(&format!("ip addr add {}/24 dev br0", net.hub_address()));
        net.in_hub("ip link set br0 up");
        for node in 0..nodes {
            let (space, peer) = (net.space(node), format!("p{node}"));
            tool(&["ip", "netns", "add", &space]);
            net.in_hub(&format!("ip link add {peer} type veth peer name eth0 netns {space}"));
            net.in_hub(&format!("ip link set {peer} master br0 up"));
            net.in_node(node, "ip link set lo up");
            net.in_node(node, &format!("ip addr add {}/24 dev eth0", net.address(node)));
            net.in_node(node, "ip link set eth0 up");
            within(&net.space(node), &["nft", TABLE]);
        }
        Some(net)
    }

    fn hub(&self) -> String {
        format!("{}-hub", self.name)
    }

    fn space(&self, node: u32) -> String {
        format!("{}-{node}", self.name)
    }

    pub fn address(&self, node: u32) -> String {
        assert!(node < self.nodes, "the net was made for {} nodes", self.nodes);
        format!("10.77.0.{}", node + 1)
    }

    pub fn hub_address(&self) -> String {
        "10.77.0.200".to_string()
    }

    /// What begins a command that runs there.
    pub fn prefix(&self, node: u32) -> Vec<String> {
        entering(&self.space(node)).to_vec()
    }

    pub fn hub_prefix(&self) -> Vec<String> {
        entering(&self.hub()).to_vec()
    }

    fn in_hub(&self, line: &str) {
        within(&self.hub(), &line.split(' ').collect::<Vec<_>>());
    }

    fn in_node(&self, node: u32, line: &str) {
        within(&self.space(node), &line.split(' ').collect::<Vec<_>>());
    }

    /// Nothing that `from` sends arrives at `to`.
    pub fn cut_one_way(&self, from: u32, to: u32) {
        self.in_node(to, &format!("nft add rule inet weft in ip saddr {} drop", self.address(from)));
    }

    pub fn cut(&self, one: u32, other: u32) {
        self.cut_one_way(one, other);
        self.cut_one_way(other, one);
    }

    /// The node and etcd hear nothing of each other.
    pub fn cut_from_etcd(&self, node: u32) {
        self.in_node(node, &format!("nft add rule inet weft in ip saddr {} drop", self.hub_address()));
        self.in_node(node, &format!("nft add rule inet weft out ip daddr {} drop", self.hub_address()));
    }

    /// The node hears nobody and nobody hears it, etcd included.
    pub fn isolate(&self, node: u32) {
        self.in_node(node, "nft add rule inet weft in iifname eth0 drop");
        self.in_node(node, "nft add rule inet weft out oifname eth0 drop");
    }

    /// So many percent of what arrives at the node get lost.
    pub fn lose(&self, node: u32, percent: u32) {
        self.in_node(
            node,
            &format!("nft add rule inet weft in iifname eth0 numgen random mod 100 < {percent} drop"),
        );
    }

    /// A narrow line from the node: what it sends waits for its turn, up to half a second, or gets lost.
    pub fn narrow(&self, node: u32) {
        self.in_node(node, "tc qdisc replace dev eth0 root tbf rate 20mbit burst 64kbit latency 500ms");
    }

    /// All is well again.
    pub fn heal(&self) {
        for node in 0..self.nodes {
            self.in_node(node, "nft flush table inet weft");
            // It fails where nothing was narrowed.
            let [program, arguments @ ..] = entering(&self.space(node));
            let _ = Command::new(program)
                .args(arguments)
                .args(["tc", "qdisc", "del", "dev", "eth0", "root"])
                .output();
        }
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for space in (0..self.nodes).map(|node| self.space(node)).chain([self.hub()]) {
            let _ = Command::new("ip").args(["netns", "del", &space]).output();
        }
    }
}

/// Not `ip netns exec`: that gives a process copies of all mounts, and a file system of another test that is mounted at this moment
/// would stay mounted there, and its device in use, until the process ends.
fn entering(space: &str) -> [String; 2] {
    ["nsenter".to_string(), format!("--net=/run/netns/{space}")]
}

fn within(space: &str, command: &[&str]) {
    let entering = entering(space);
    tool(&entering.iter().map(String::as_str).chain(command.iter().copied()).collect::<Vec<_>>());
}
