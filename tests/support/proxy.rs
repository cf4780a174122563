//! A TCP proxy with injected network faults, between any two of client, gateway, runner and database.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use uuid::Uuid;

/// Fault for all traffic from now on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NetworkFault {
    #[default]
    Forwarding,
    /// Accept connections and bytes, but deliver nothing until the proxy is `Forwarding` again.
    Holding,
    /// Delay each chunk by this duration.
    Late(Duration),
    /// Refuse new connections, and reset open ones.
    Refusing,
}

/// The sender of the counted bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SenderSide {
    Caller,
    Callee,
}

/// Kind of close of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseKind {
    /// FIN: a clean end.
    Finished,
    /// RST.
    Reset,
}

/// Closes the first connection that matches, and no other.
#[derive(Clone, Debug)]
pub enum CutTrigger {
    /// After exactly this number of bytes from one side.
    After(SenderSide, usize, CloseKind),
    /// At the COMMIT that follows this text, before it is forwarded.
    BeforeCommit(String),
    /// At the answer to the COMMIT that follows this text; the answer is dropped.
    AfterCommit(String),
}

/// Closes its connections on drop.
pub struct Proxy {
    pub address: SocketAddr,
    shared: Arc<ProxyState>,
    _tasks: JoinSet<()>,
}

struct ProxyState {
    target: Mutex<SocketAddr>,
    wire: watch::Sender<NetworkFault>,
    /// Counts calls of `silence`.
    silences: watch::Sender<usize>,
    /// Counts calls of `cut`.
    cuts: watch::Sender<usize>,
    trap: Mutex<Option<CutTrigger>>,
    fired: watch::Sender<usize>,
    /// Fault that starts when the trap fires.
    after: Mutex<Option<NetworkFault>>,
    answered: AtomicUsize,
}

impl Proxy {
    /// Forwards to `host:port`. Listens on a separate address that no other process takes while it refuses
    /// connections.
    pub async fn to(target: &str) -> Self {
        let target = tokio::net::lookup_host(target).await.unwrap().next();
        let [a, b, ..] = *Uuid::new_v4().as_bytes();
        let listener = TcpListener::bind(format!("127.{a}.{b}.2:0")).await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(ProxyState {
            target: Mutex::new(target.unwrap()),
            wire: watch::Sender::default(),
            silences: watch::Sender::default(),
            cuts: watch::Sender::default(),
            trap: Mutex::default(),
            fired: watch::Sender::default(),
            after: Mutex::default(),
            answered: AtomicUsize::new(0),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(listen(listener, address, Arc::clone(&shared)));
        Self {
            address,
            shared,
            _tasks: tasks,
        }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Forwards new connections to `target`; open ones stay.
    pub fn retarget(&self, target: SocketAddr) {
        *self.shared.target.lock().unwrap() = target;
    }

    pub fn set(&self, wire: NetworkFault) {
        self.shared.wire.send_replace(wire);
        if wire == NetworkFault::Refusing {
            self.cut();
        }
    }

    /// Resets every open connection.
    pub fn cut(&self) {
        self.shared.cuts.send_modify(|count| *count += 1);
    }

    /// Every open connection silently stops forwarding for good. New connections work.
    pub fn silence(&self) {
        self.shared.silences.send_modify(|count| *count += 1);
    }

    pub fn arm(&self, trap: CutTrigger) {
        *self.shared.trap() = Some(trap);
    }

    /// Waits until `count` traps have fired.
    pub async fn fired(&self, count: usize) {
        let mut fired = self.shared.fired.subscribe();
        let enough = fired.wait_for(|all| *all >= count);
        super::within("the trap to spring", enough).await.unwrap();
    }

    /// Like `arm`, and switches to `wire` when the trap fires.
    pub fn arm_then(&self, trap: CutTrigger, wire: NetworkFault) {
        *self.shared.after.lock().unwrap() = Some(wire);
        self.arm(trap);
    }

    pub fn has_fired(&self) -> bool {
        *self.shared.fired.borrow() > 0
    }

    /// Number of forwarded bytes from the target.
    pub fn answered(&self) -> usize {
        self.shared.answered.load(Ordering::SeqCst)
    }

    /// Number of those bytes that the caller has not read yet and the kernel buffers. 0 on systems without
    /// `/proc/net/tcp`.
    pub fn unread(&self) -> usize {
        let sockets = std::fs::read_to_string("/proc/net/tcp").unwrap_or_default();
        let lines = sockets.lines().skip(1);
        lines.filter_map(|line| self.buffered_bytes(line)).sum()
    }

    /// Buffered bytes of a socket of this proxy, from a line of that table: in the send or the receive queue.
    fn buffered_bytes(&self, line: &str) -> Option<usize> {
        let SocketAddr::V4(address) = self.address else {
            return None;
        };
        let ip = u32::from_ne_bytes(address.ip().octets());
        let ours = format!("{ip:08X}:{:04X}", address.port());
        let mut cells = line.split_whitespace().skip(1);
        let (local, remote) = (cells.next()?, cells.next()?);
        let (sending, received) = cells.nth(1)?.split_once(':')?;
        let handle = match ours {
            ours if ours == local => sending,
            ours if ours == remote => received,
            _ => return None,
        };
        usize::from_str_radix(handle, 16).ok()
    }
}

impl ProxyState {
    fn trap(&self) -> std::sync::MutexGuard<'_, Option<CutTrigger>> {
        self.trap.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True for the caller that fires the trap.
    fn fire(&self) -> bool {
        let fired = self.trap().take().is_some();
        if fired {
            if let Some(wire) = self.after.lock().unwrap().take() {
                self.wire.send_replace(wire);
                self.cuts.send_modify(|count| *count += 1);
            }
            self.fired.send_modify(|count| *count += 1);
        }
        fired
    }
}

async fn listen(listener: TcpListener, address: SocketAddr, shared: Arc<ProxyState>) {
    let mut listener = Some(listener);
    let mut wire = shared.wire.subscribe();
    let mut connections = JoinSet::new();
    loop {
        if *wire.borrow_and_update() == NetworkFault::Refusing {
            listener = None;
            wire.changed().await.unwrap();
            continue;
        }
        let listening = match listener.take() {
            Some(listening) => listening,
            None => TcpListener::bind(address).await.unwrap(),
        };
        tokio::select! {
            accepted = listening.accept() => {
                let (caller, _) = accepted.unwrap();
                connections.spawn(connect(caller, Arc::clone(&shared)));
            }
            _ = wire.changed() => {}
            Some(_) = connections.join_next() => {}
        }
        listener = Some(listening);
    }
}

async fn connect(mut caller: TcpStream, shared: Arc<ProxyState>) {
    let mut cuts = shared.cuts.subscribe();
    cuts.borrow_and_update();
    let target = *shared.target.lock().unwrap();
    let Ok(mut callee) = TcpStream::connect(target).await else {
        let _ = caller.set_zero_linger();
        return;
    };
    let _ = (caller.set_nodelay(true), callee.set_nodelay(true));
    let triggers = TriggerState::default();
    let silences = shared.silences.subscribe();
    let cut = {
        let (from_caller, to_caller) = caller.split();
        let (from_callee, to_callee) = callee.split();
        tokio::select! {
            both = async { tokio::try_join!(
                pump(&shared, &triggers, SenderSide::Caller, from_caller, to_callee, silences.clone()),
                pump(&shared, &triggers, SenderSide::Callee, from_callee, to_caller, silences.clone()),
            ) } => both.err(),
            _ = cuts.changed() => Some(CloseKind::Reset),
        }
    };
    if cut == Some(CloseKind::Reset) {
        let _ = (caller.set_zero_linger(), callee.set_zero_linger());
    }
}

/// Trap state of one connection.
#[derive(Default)]
struct TriggerState {
    /// The text was seen.
    text: AtomicBool,
    /// A COMMIT followed the text; its answer is dropped.
    committed: AtomicBool,
}

/// Forwards bytes in one direction until the end. Returns an error when a trap fires.
async fn pump(
    shared: &ProxyState,
    triggers: &TriggerState,
    side: SenderSide,
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    silences: watch::Receiver<usize>,
) -> Result<(), CloseKind> {
    let mut wire = shared.wire.subscribe();
    let mut buffer = vec![0; 16 * 1024];
    let mut count = 0;
    let mut tail = Vec::new();
    loop {
        let Ok(read @ 1..) = from.read(&mut buffer).await else {
            let _ = to.shutdown().await;
            return Ok(());
        };
        let _ = wire.wait_for(|wire| *wire != NetworkFault::Holding).await;
        if silences.has_changed().unwrap_or(true) {
            continue;
        }
        let mut bytes = &buffer[..read];
        let mut cut = None;
        let trap = shared.trap().clone();
        match trap {
            Some(CutTrigger::After(counted, after, how))
                if counted == side && count + read >= after =>
            {
                bytes = &bytes[..after - count.min(after)];
                cut = shared.fire().then_some(how);
            }
            Some(CutTrigger::BeforeCommit(text))
                if side == SenderSide::Caller
                    && triggers.has_commit_after(&mut tail, bytes, &text)
                    && shared.fire() =>
            {
                return Err(CloseKind::Reset);
            }
            Some(CutTrigger::AfterCommit(text))
                if side == SenderSide::Caller
                    && triggers.has_commit_after(&mut tail, bytes, &text) =>
            {
                triggers.committed.store(true, Ordering::SeqCst);
            }
            Some(CutTrigger::AfterCommit(_))
                if side == SenderSide::Callee
                    && triggers.committed.load(Ordering::SeqCst)
                    // Answers to statements of the same transaction may arrive first.
                    && find(bytes, b"COMMIT").is_some()
                    && shared.fire() =>
            {
                return Err(CloseKind::Reset);
            }
            _ => {}
        }
        count += read;
        let wire = *wire.borrow();
        if carry(&mut to, bytes, wire).await.is_err() {
            return Ok(());
        }
        if side == SenderSide::Callee {
            shared.answered.fetch_add(bytes.len(), Ordering::SeqCst);
        }
        if let Some(cut) = cut {
            return Err(cut);
        }
    }
}

impl TriggerState {
    /// True if these bytes contain a COMMIT after the text.
    fn has_commit_after(&self, tail: &mut Vec<u8>, bytes: &[u8], text: &str) -> bool {
        tail.extend_from_slice(bytes);
        let mut from = 0;
        if !self.text.load(Ordering::SeqCst) {
            let Some(at) = find(tail, text.as_bytes()) else {
                tail.drain(..tail.len().saturating_sub(text.len()));
                return false;
            };
            self.text.store(true, Ordering::SeqCst);
            from = at;
        }
        let committed = find(&tail[from..], b"COMMIT").is_some();
        tail.drain(..tail.len().saturating_sub(8));
        committed
    }
}

fn find(all: &[u8], part: &[u8]) -> Option<usize> {
    all.windows(part.len()).position(|window| window == part)
}

async fn carry(to: &mut WriteHalf<'_>, bytes: &[u8], wire: NetworkFault) -> std::io::Result<()> {
    match wire {
        NetworkFault::Late(by) => {
            tokio::time::sleep(by).await;
            to.write_all(bytes).await
        }
        NetworkFault::Forwarding | NetworkFault::Holding | NetworkFault::Refusing => {
            to.write_all(bytes).await
        }
    }
}
