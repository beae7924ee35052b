//! The example of the paper (Deligiannis et al., FAST'16, section 2.2): a server stores a client's data at three nodes and
//! acknowledges when all have it.
//!
//! Nodes report what they hold when their timers go off, which they do when they like. The server sends the data again to
//! a node whose report is out of date, and counts the others.
//!
//! Departs   The server ignores reports while no request is open. As the paper tells it, it would count those that speak of
//!           the request before.

use super::{Bug, Harness};
use ashlar_env::sim::{Handle, Monitor, Mood, Watch};
use std::collections::BTreeSet;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

const NODES: usize = 3;
const REQUESTS: u64 = 2;

const SAME_NODE_TWICE: &str = "same-node-twice";
const COUNT_NOT_RESET: &str = "count-not-reset";

pub(super) struct Replication;

impl Harness for Replication {
    fn name(&self) -> &'static str {
        "replication"
    }
    fn what(&self) -> &'static str {
        "a server acknowledges when three nodes hold the data (FAST'16, section 2.2)"
    }
    fn bugs(&self) -> &'static [Bug] {
        &[
            Bug {
                name: SAME_NODE_TWICE,
                what: "the server counts reports, not the nodes that they come from (safety)",
            },
            Bug { name: COUNT_NOT_RESET, what: "the count is not reset after an acknowledgement (liveness)" },
        ]
    }
    fn steps_max(&self) -> u64 {
        5_000
    }
    fn start(&self, sim: &Handle, bug: Option<&'static str>) {
        let watch = sim.watch("a request is acknowledged", Replicas::default());
        let (server, inbox) = unbounded_channel();
        let mut nodes = Vec::new();
        for node in 0..NODES {
            let (to_node, inbox) = unbounded_channel();
            sim.spawn(format!("node {node}"), serve_node(node, inbox, server.clone(), watch.clone()));
            sim.spawn(format!("timer {node}"), tick(sim.clone(), to_node.clone()));
            nodes.push(to_node);
        }
        let (acknowledge, acknowledged) = unbounded_channel();
        let machine =
            Server { bug, data: 0, open: false, reported: BTreeSet::new(), count: 0, nodes, acknowledge, watch };
        sim.spawn("server", serve(machine, inbox));
        sim.spawn("client", ask(sim.clone(), server, acknowledged));
    }
}

enum ToServer {
    Request(u64),
    Report { node: usize, holds: u64 },
}

enum ToNode {
    Store(u64),
    Tick,
}

struct Server {
    bug: Option<&'static str>,
    data: u64,
    /// A request is not yet acknowledged.
    open: bool,
    reported: BTreeSet<usize>,
    count: usize,
    nodes: Vec<UnboundedSender<ToNode>>,
    acknowledge: UnboundedSender<u64>,
    watch: Watch<Replicas>,
}

impl Server {
    fn on(&mut self, message: ToServer) {
        match message {
            ToServer::Request(data) => {
                (self.data, self.open) = (data, true);
                self.watch.tell(Event::Asked);
                for node in &self.nodes {
                    let _ = node.send(ToNode::Store(data));
                }
            }
            ToServer::Report { .. } if !self.open => {}
            ToServer::Report { node, holds } if holds != self.data => {
                let _ = self.nodes[node].send(ToNode::Store(self.data));
            }
            ToServer::Report { node, .. } => {
                let is_new = self.reported.insert(node);
                if is_new || self.bug == Some(SAME_NODE_TWICE) {
                    self.count += 1;
                }
                if self.count == NODES {
                    self.watch.tell(Event::Acknowledged(self.data));
                    let _ = self.acknowledge.send(self.data);
                    self.open = false;
                    self.reported.clear();
                    if self.bug != Some(COUNT_NOT_RESET) {
                        self.count = 0;
                    }
                }
            }
        }
    }
}

async fn serve(mut server: Server, mut inbox: UnboundedReceiver<ToServer>) {
    while let Some(message) = inbox.recv().await {
        server.on(message);
    }
}

async fn serve_node(
    node: usize,
    mut inbox: UnboundedReceiver<ToNode>,
    server: UnboundedSender<ToServer>,
    watch: Watch<Replicas>,
) {
    let mut holds = 0;
    while let Some(message) = inbox.recv().await {
        match message {
            ToNode::Store(data) => {
                holds = data;
                watch.tell(Event::Stored { node, data });
            }
            ToNode::Tick => _ = server.send(ToServer::Report { node, holds }),
        }
    }
}

async fn tick(sim: Handle, node: UnboundedSender<ToNode>) {
    loop {
        if sim.coin() {
            let _ = node.send(ToNode::Tick);
        }
        sim.env().yield_now().await;
    }
}

async fn ask(sim: Handle, server: UnboundedSender<ToServer>, mut acknowledged: UnboundedReceiver<u64>) {
    for data in 1..=REQUESTS {
        let _ = server.send(ToServer::Request(data));
        assert_eq!(acknowledged.recv().await, Some(data), "another request is acknowledged");
    }
    sim.finish();
}

/// Knows what each node holds. Hot from a request to its acknowledgement.
#[derive(Default)]
struct Replicas {
    holds: [u64; NODES],
    open: bool,
}

enum Event {
    Asked,
    Stored { node: usize, data: u64 },
    Acknowledged(u64),
}

impl Monitor for Replicas {
    type Event = Event;
    fn observe(&mut self, event: Event) -> Result<Mood, String> {
        match event {
            Event::Asked => self.open = true,
            Event::Stored { node, data } => self.holds[node] = data,
            Event::Acknowledged(data) => {
                let replicas = self.holds.iter().filter(|held| **held == data).count();
                if replicas < NODES {
                    return Err(format!(
                        "request {data} is acknowledged, and {replicas} of {NODES} nodes hold its data"
                    ));
                }
                self.open = false;
            }
        }
        Ok(if self.open { Mood::Hot } else { Mood::Cold })
    }
}
