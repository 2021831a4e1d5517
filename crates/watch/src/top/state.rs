//! What `urbd top` knows and what its keys do: no terminal here.

use std::cell::Cell;
use std::cmp::Ordering;
use std::time::{Duration, Instant};

use control::ResourceStatus;
use control::matter::{Matter, Weight, matters};

use crate::look::{Seen, Unseen};
use crate::rates::Rates;

/// What a key means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    /// Ends the program.
    Quit,
    /// Leaves help or the detail; from the list, ends the program.
    Back,
    /// All about the selected resource.
    Detail,
    /// Selects another resource: so many further down. In the detail: shows so many lines further down.
    Move(isize),
    /// The next order.
    Sort,
    /// The other way round.
    Reverse,
    /// What the keys do.
    Help,
}

/// By what the list is sorted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sort {
    /// What matters most first, then by name.
    State,
    /// By name.
    Name,
    /// Most writes first.
    Writes,
    /// Slowest writes first.
    Latency,
    /// Most bytes to and from the peers first.
    Network,
    /// Resyncs first, the one with the longest way to go first of all.
    Resync,
}

impl Sort {
    const ALL: [Sort; 6] = [Sort::State, Sort::Name, Sort::Writes, Sort::Latency, Sort::Network, Sort::Resync];

    /// For the head line.
    pub fn word(self) -> &'static str {
        match self {
            Sort::State => "state",
            Sort::Name => "name",
            Sort::Writes => "writes",
            Sort::Latency => "latency",
            Sort::Network => "network",
            Sort::Resync => "resync",
        }
    }
}

/// One resource.
#[derive(Debug, Clone)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// Its status, or why there is none.
    pub status: Result<ResourceStatus, Unseen>,
    /// What changed since the look before.
    pub rates: Rates,
    /// What is the matter.
    pub matters: Vec<Matter>,
}

impl Row {
    /// The heaviest thing that is the matter; a resource without a process or an answer is an error.
    pub fn weight(&self) -> Weight {
        match &self.status {
            Err(_) => Weight::Error,
            Ok(_) => self.matters.first().map_or(Weight::Note, |m| m.weight),
        }
    }

    fn latency(&self) -> u64 {
        self.rates.p99_ns("write", "total").unwrap_or(0)
    }

    /// Seconds until the last resync or verify ends; `None` if none runs.
    pub fn sync_left(&self) -> Option<u64> {
        let peers = self
            .status
            .iter()
            .flat_map(|r| r.connections.iter().flat_map(move |c| c.peer_devices.iter().map(move |p| (r, p))));
        let running = peers.filter(|(r, p)| control::query::percent_done(r, p).is_some());
        running.map(|(_, p)| control::query::seconds_left(p).unwrap_or(u64::MAX)).max()
    }
}

/// Everything that is shown.
#[derive(Debug)]
pub struct State {
    /// The resources in their order.
    pub rows: Vec<Row>,
    /// Name of the selected one; it stays selected wherever it moves.
    pub selected: Option<String>,
    /// The order.
    pub sort: Sort,
    /// The other way round.
    pub reversed: bool,
    /// The detail of the selected resource is shown.
    pub detail: bool,
    /// How many lines of the detail are above the screen. Who draws knows how many there are at most.
    pub scrolled: Cell<usize>,
    /// Help is shown.
    pub help: bool,
    /// Colours may be used.
    pub color: bool,
    looked: Option<Instant>,
}

impl State {
    /// Nothing was seen yet.
    pub fn new(color: bool) -> State {
        State {
            rows: Vec::new(),
            selected: None,
            sort: Sort::State,
            reversed: false,
            detail: false,
            scrolled: Cell::new(0),
            help: false,
            color,
            looked: None,
        }
    }

    /// Takes in what was seen at `now`.
    pub fn look(&mut self, seen: Vec<Seen>, now: Instant) {
        let time = self.looked.map_or(Duration::ZERO, |then| now.duration_since(then));
        self.looked = Some(now);
        let old = std::mem::take(&mut self.rows);
        let row = |seen: Seen| {
            let before = old.iter().find(|r| r.name == seen.name).and_then(|r| r.status.as_ref().ok());
            let rates = seen.status.as_ref().map(|now| Rates::between(before, now, time)).unwrap_or_default();
            let matters = seen.status.as_ref().map(matters).unwrap_or_default();
            Row { name: seen.name, status: seen.status, rates, matters }
        };
        self.rows = seen.into_iter().map(row).collect();
        self.arrange();
    }

    /// Index of the selected row.
    pub fn index(&self) -> Option<usize> {
        self.rows.iter().position(|r| Some(&r.name) == self.selected.as_ref())
    }

    /// The selected row.
    pub fn current(&self) -> Option<&Row> {
        self.rows.get(self.index()?)
    }

    /// Does what a key means; false: the program is to end.
    pub fn press(&mut self, key: Key) -> bool {
        match key {
            Key::Quit => return false,
            Key::Back if self.help => self.help = false,
            Key::Back if self.detail => self.detail = false,
            Key::Back => return false,
            Key::Help => self.help = !self.help,
            Key::Detail => {
                self.detail = !self.rows.is_empty();
                self.scrolled.set(0);
            }
            Key::Move(by) if self.detail => self.scrolled.set(self.scrolled.get().saturating_add_signed(by)),
            Key::Move(by) => {
                let last = self.rows.len().saturating_sub(1);
                let to = self.index().unwrap_or(0).saturating_add_signed(by).min(last);
                self.selected = self.rows.get(to).map(|r| r.name.clone());
            }
            Key::Sort => {
                let at = Sort::ALL.iter().position(|s| *s == self.sort).unwrap_or(0);
                self.sort = Sort::ALL[(at + 1) % Sort::ALL.len()];
                self.arrange();
            }
            Key::Reverse => {
                self.reversed = !self.reversed;
                self.arrange();
            }
        }
        true
    }

    fn arrange(&mut self) {
        let (sort, reversed) = (self.sort, self.reversed);
        let descending = |a: f64, b: f64| b.total_cmp(&a);
        self.rows.sort_by(|a, b| {
            let order = match sort {
                Sort::State => a.weight().cmp(&b.weight()),
                Sort::Name => Ordering::Equal,
                Sort::Writes => descending(a.rates.writes, b.rates.writes),
                Sort::Latency => b.latency().cmp(&a.latency()),
                Sort::Network => descending(a.rates.sent + a.rates.received, b.rates.sent + b.rates.received),
                Sort::Resync => b.sync_left().cmp(&a.sync_left()),
            };
            let order = order.then_with(|| a.name.cmp(&b.name));
            if reversed { order.reverse() } else { order }
        });
        if self.index().is_none() {
            self.selected = self.rows.first().map(|r| r.name.clone());
            self.detail = false;
        }
    }
}
