//! The extent manager of the paper (Deligiannis et al., FAST'16, section 3): it keeps three replicas of every extent, as
//! far as it knows from the nodes' reports.
//!
//! A node sends heartbeats, and now and then a report of the extents that it holds. The manager keeps two tables: when it
//! last heard of each node, and which nodes hold each extent. Its *expiration loop* removes silent nodes from both; its
//! *repair loop* asks nodes to copy extents of which there are fewer than three. The scenario: one extent on one of three
//! nodes; when it has three replicas, one node fails and a fourth starts; it must have three again.
//!
//! Messages are tasks of their own, which take their time: a report may arrive long after its sender was removed. If the
//! manager believes it, it counts a replica that is gone, for ever, since it will not remove that node again.
//!
//! Departs   The paper's source is closed; this is made from its description. Heartbeats take less than the time after which a
//!           node is removed, unless messages are lost, and so many in a row are not: else a node that lives would be removed
//!           now and then, which hides the bug. Messages to machines in the scenario are lost only [`LOSSES_MAX`] times.

use super::{Bug, Harness};
use ashlar_env::sim::{Handle, Monitor, Mood, Watch};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Replicas that an extent should have.
const REPLICAS: usize = 3;
/// Nodes at the beginning.
const NODES: usize = 3;
/// The extent of the scenario.
const EXTENT: u64 = 7;
/// Timers of nodes and of the manager.
const PERIOD: Duration = Duration::from_millis(10);
/// Periods of silence after which a node is removed.
const SILENCE: u32 = 4;
/// Messages that are lost in one execution, at most.
const LOSSES_MAX: u64 = 6;

const LATE_SYNC: &str = "late-sync";

/// With or without the loss of messages.
pub(super) struct ExtentManager {
    name: &'static str,
    what: &'static str,
    losses: u64,
}

pub(super) static STEADY: ExtentManager = ExtentManager {
    name: "extent-manager",
    what: "a manager keeps three replicas of an extent while a node fails (FAST'16, section 3)",
    losses: 0,
};

pub(super) static LOSSY: ExtentManager =
    ExtentManager { name: "extent-manager-lossy", what: "the same, and messages are lost", losses: LOSSES_MAX };

impl Harness for ExtentManager {
    fn name(&self) -> &'static str {
        self.name
    }
    fn what(&self) -> &'static str {
        self.what
    }
    fn bugs(&self) -> &'static [Bug] {
        &[Bug { name: LATE_SYNC, what: "the manager believes a report from a node that it has removed (liveness)" }]
    }
    fn steps_max(&self) -> u64 {
        6_000
    }
    fn start(&self, sim: &Handle, bug: Option<&'static str>) {
        let watch = sim.watch("every extent has three replicas", Replicas::default());
        let (manager, inbox) = unbounded_channel();
        let network = Network { manager, nodes: Mutex::default(), losses_left: Mutex::new(self.losses) };
        let world =
            Arc::new(World { sim: sim.clone(), network, watch, failed: Mutex::default(), holders: Mutex::default() });
        let machine = Manager { bug, heard: BTreeMap::new(), holders: BTreeMap::new(), world: world.clone() };
        sim.spawn("manager", manage(machine, inbox));
        sim.spawn("manager's timer", tick_manager(world.clone()));
        for node in 0..NODES {
            let extents = if node == 0 { vec![EXTENT] } else { Vec::new() };
            world.start_node(node, extents);
        }
        sim.spawn("driver", drive(world));
    }
}

type NodeId = usize;

#[derive(Clone, Debug)]
enum ToManager {
    Heartbeat(NodeId),
    Report { node: NodeId, extents: BTreeSet<u64> },
    Expire,
    Repair,
}

#[derive(Clone, Debug)]
enum ToNode {
    /// Get the extent from that node.
    Fetch {
        extent: u64,
        from: NodeId,
    },
    /// Send the extent to that node.
    Send {
        extent: u64,
        to: NodeId,
    },
    Contents(u64),
    Tick,
}

struct Network {
    manager: UnboundedSender<ToManager>,
    nodes: Mutex<BTreeMap<NodeId, UnboundedSender<ToNode>>>,
    losses_left: Mutex<u64>,
}

/// What machines share: the network, and what tells the monitor.
struct World {
    sim: Handle,
    network: Network,
    watch: Watch<Replicas>,
    failed: Mutex<BTreeSet<NodeId>>,
    /// Who really holds the extent.
    holders: Mutex<BTreeSet<NodeId>>,
}

impl World {
    fn start_node(self: &Arc<World>, node: NodeId, extents: Vec<u64>) {
        let (to_node, inbox) = unbounded_channel();
        self.network.nodes.lock().insert(node, to_node.clone());
        extents.iter().for_each(|_| self.stored(node));
        self.sim.spawn(format!("node {node}"), serve_node(self.clone(), node, extents.into_iter().collect(), inbox));
        self.sim.spawn(format!("timer {node}"), tick_node(self.clone(), node, to_node));
    }

    fn stored(&self, node: NodeId) {
        self.holders.lock().insert(node);
        self.watch.tell(Event::Stored(node));
    }

    fn fail(&self, node: NodeId) {
        self.sim.note(|| format!("node {node} fails"));
        self.failed.lock().insert(node);
        self.holders.lock().remove(&node);
        self.watch.tell(Event::Failed(node));
    }

    async fn replicated(&self) {
        while self.holders.lock().len() < REPLICAS {
            self.sim.env().sleep(PERIOD).await;
        }
    }

    fn has_failed(&self, node: NodeId) -> bool {
        self.failed.lock().contains(&node)
    }

    /// Delivers a message when the schedule likes, or never. `slow`: after any number of periods.
    fn post(self: &Arc<World>, slow: bool, deliver: impl FnOnce(&Network) + Send + 'static) {
        let world = self.clone();
        self.sim.spawn("message", async move {
            if *world.network.losses_left.lock() > 0 && world.sim.choose(8) == 0 {
                *world.network.losses_left.lock() -= 1;
                world.sim.note(|| "lost".into());
                return;
            }
            while slow && world.sim.coin() {
                world.sim.env().sleep(PERIOD).await;
            }
            deliver(&world.network);
        });
    }

    fn post_manager(self: &Arc<World>, slow: bool, message: ToManager) {
        let sim = self.sim.clone();
        self.post(slow, move |network| {
            sim.note(|| format!("to the manager: {message:?}"));
            let _ = network.manager.send(message);
        });
    }

    fn post_node(self: &Arc<World>, node: NodeId, message: ToNode) {
        let sim = self.sim.clone();
        self.post(true, move |network| {
            sim.note(|| format!("to node {node}: {message:?}"));
            let to = network.nodes.lock().get(&node).cloned();
            let _ = to.map(|to| to.send(message));
        });
    }
}

struct Manager {
    bug: Option<&'static str>,
    /// Periods since each node was heard.
    heard: BTreeMap<NodeId, u32>,
    /// Which nodes hold an extent: the paper's extent center.
    holders: BTreeMap<u64, BTreeSet<NodeId>>,
    world: Arc<World>,
}

impl Manager {
    fn on(&mut self, message: ToManager) {
        match message {
            ToManager::Heartbeat(node) => _ = self.heard.insert(node, 0),
            // The mend: who has been removed must be heard first.
            ToManager::Report { node, .. } if !self.heard.contains_key(&node) && self.bug != Some(LATE_SYNC) => {}
            ToManager::Report { node, extents } => {
                for holders in self.holders.values_mut() {
                    holders.remove(&node);
                }
                for extent in extents {
                    self.holders.entry(extent).or_default().insert(node);
                }
            }
            ToManager::Expire => self.expire(),
            ToManager::Repair => self.repair(),
        }
    }

    fn expire(&mut self) {
        for silence in self.heard.values_mut() {
            *silence += 1;
        }
        let removed: Vec<NodeId> =
            self.heard.iter().filter(|(_, silence)| **silence > SILENCE).map(|(node, _)| *node).collect();
        for node in removed {
            self.world.sim.note(|| format!("removes node {node}"));
            self.heard.remove(&node);
            for holders in self.holders.values_mut() {
                holders.remove(&node);
            }
        }
    }

    fn repair(&mut self) {
        for (extent, holders) in &self.holders {
            if holders.is_empty() || holders.len() >= REPLICAS {
                continue;
            }
            let pick = |nodes: Vec<NodeId>| (!nodes.is_empty()).then(|| nodes[self.world.sim.choose(nodes.len())]);
            let others = self.heard.keys().filter(|node| !holders.contains(node)).copied().collect();
            let (Some(to), Some(from)) = (pick(others), pick(holders.iter().copied().collect())) else { continue };
            self.world.post_node(to, ToNode::Fetch { extent: *extent, from });
        }
    }
}

async fn manage(mut manager: Manager, mut inbox: UnboundedReceiver<ToManager>) {
    while let Some(message) = inbox.recv().await {
        manager.on(message);
    }
}

async fn tick_manager(world: Arc<World>) {
    loop {
        world.sim.env().sleep(PERIOD).await;
        let _ = world.network.manager.send(ToManager::Expire);
        if world.sim.coin() {
            let _ = world.network.manager.send(ToManager::Repair);
        }
    }
}

async fn serve_node(world: Arc<World>, node: NodeId, mut extents: BTreeSet<u64>, mut inbox: UnboundedReceiver<ToNode>) {
    while let Some(message) = inbox.recv().await {
        if world.has_failed(node) {
            return;
        }
        match message {
            ToNode::Fetch { extent, from } => world.post_node(from, ToNode::Send { extent, to: node }),
            ToNode::Send { extent, to } if extents.contains(&extent) => {
                world.post_node(to, ToNode::Contents(extent));
            }
            ToNode::Send { .. } => {}
            ToNode::Contents(extent) => {
                extents.insert(extent);
                world.stored(node);
            }
            ToNode::Tick => {
                world.post_manager(false, ToManager::Heartbeat(node));
                if world.sim.coin() {
                    world.post_manager(true, ToManager::Report { node, extents: extents.clone() });
                }
            }
        }
    }
}

async fn tick_node(world: Arc<World>, node: NodeId, to_node: UnboundedSender<ToNode>) {
    while !world.has_failed(node) {
        let _ = to_node.send(ToNode::Tick);
        world.sim.env().sleep(PERIOD).await;
    }
}

/// Waits until the extent is replicated, makes a node fail and another start, and waits again.
async fn drive(world: Arc<World>) {
    world.replicated().await;
    world.fail(world.sim.choose(NODES));
    world.start_node(NODES, Vec::new());
    world.replicated().await;
    world.sim.finish();
}

/// Hot while a replica is missing.
#[derive(Default)]
struct Replicas(BTreeSet<NodeId>);

enum Event {
    Stored(NodeId),
    Failed(NodeId),
}

impl Monitor for Replicas {
    type Event = Event;
    fn observe(&mut self, event: Event) -> Result<Mood, String> {
        match event {
            Event::Stored(node) => _ = self.0.insert(node),
            Event::Failed(node) => _ = self.0.remove(&node),
        }
        if self.0.is_empty() {
            return Err("the last replica is gone".into());
        }
        Ok(if self.0.len() < REPLICAS { Mood::Hot } else { Mood::Cold })
    }
}
