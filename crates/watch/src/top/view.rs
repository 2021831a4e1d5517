//! How it looks, in 80 columns or whatever there is.

use control::matter::{Weight, wrapped};
use control::{ConnectionState, DiskState, ReplicationState, ResourceStatus, Role, query};
use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Paragraph, Widget};

use super::state::{Row, State};
use crate::rates::{bytes, duration};

/// Lines under the list, for what is the matter with the selected resource.
const MATTERS: u16 = 7;

const KEYS: [(&str, &str); 8] = [
    ("up, down, k, j", "select a resource, or scroll the detail; PgUp, PgDn, Home, End"),
    ("Enter, right", "all about it: volumes, peers, each stage of its requests"),
    ("Esc, left", "back"),
    ("s", "sort by state, name, writes, latency, network, resync"),
    ("r", "the other way round"),
    ("?", "this help"),
    ("q", "end"),
    ("", "Nothing here changes anything."),
];

/// Draws everything.
pub fn draw(frame: &mut Frame, state: &State) {
    let area = frame.area();
    render(state, area, frame.buffer_mut());
}

/// The same into a buffer.
pub fn render(state: &State, area: Rect, out: &mut Buffer) {
    let [head, body] = Layout::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(area);
    let keys = if state.detail || state.help { "Esc back" } else { "Enter detail" };
    let order = format!("sorted by {}{}", state.sort.word(), if state.reversed { ", reversed" } else { "" });
    let many = if state.rows.len() == 1 { "" } else { "s" };
    let text = format!("urbd  {} resource{many}  {order}  {keys}  s sort  ? help  q end", state.rows.len());
    Line::styled(text, Style::new().add_modifier(Modifier::BOLD)).render(head, out);
    match state.current() {
        _ if state.help => help().render(body, out),
        None => Paragraph::new("\nNo resource runs on this node. Start one with: urbd up RESOURCE").render(body, out),
        Some(row) if state.detail => {
            let lines = detail(row, state.color, area.width);
            let most = lines.len().saturating_sub(usize::from(body.height));
            state.scrolled.set(state.scrolled.get().min(most));
            // What is above or below is shown by the keys.
            let first = u16::try_from(state.scrolled.get()).unwrap_or(u16::MAX);
            Paragraph::new(lines).scroll((first, 0)).render(body, out);
        }
        Some(row) => {
            let below = MATTERS.min(body.height / 3);
            let [list, about] = Layout::vertical([Constraint::Min(0), Constraint::Length(below)]).areas(body);
            render_list(state, list, out);
            about_row(row, state.color, about).render(about, out);
        }
    }
}

/// Without a terminal: the whole list and all that is the matter, in 80 columns.
pub fn plain(state: &State) -> String {
    if state.rows.is_empty() {
        return "No resource runs on this node. Start one with: urbd up RESOURCE\n".to_owned();
    }
    let mut text = title() + "\n";
    for row in &state.rows {
        text += &(cells(row) + "\n");
    }
    for row in &state.rows {
        text += &sentences(row, Weight::Note, 80);
    }
    text.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

fn help() -> Paragraph<'static> {
    let lines = KEYS.iter().map(|(key, what)| Line::raw(format!("  {key:<16}{what}")));
    Paragraph::new(std::iter::once(Line::raw("")).chain(lines).collect::<Vec<_>>())
}

fn title() -> String {
    format!(
        "{:<16} {:<5} {:<9} {:>5} {:>6} {:>6} {:>6} {:>6} {:>6} {}",
        "  RESOURCE", "ROLE", "DISK", "PEERS", "WR/s", "RD/s", "NET/s", "DISK/s", "WR p99", "SYNC"
    )
}

fn render_list(state: &State, area: Rect, out: &mut Buffer) {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let rows = usize::from(area.height.saturating_sub(1));
    // The selected one is always seen.
    let first = state.index().unwrap_or(0).saturating_sub(rows.saturating_sub(1));
    let mut lines = vec![Line::styled(title(), bold)];
    for (index, row) in state.rows.iter().enumerate().skip(first).take(rows) {
        let selected = state.index() == Some(index);
        let marked = if selected { cells(row).replacen(' ', ">", 1) } else { cells(row) };
        let style = style(row.weight(), state.color);
        lines.push(Line::styled(marked, if selected { style.add_modifier(Modifier::REVERSED) } else { style }));
    }
    Paragraph::new(lines).render(area, out);
}

/// One line: a blank for the cursor, a mark if something is the matter, then the columns.
fn cells(row: &Row) -> String {
    let mark = match row.weight() {
        Weight::Error => '!',
        Weight::Warning => '?',
        Weight::Running => '~',
        Weight::Note => ' ',
    };
    let name = shortened(&row.name, 14);
    let r = match &row.status {
        Ok(r) => r,
        Err(why) => return shortened(&format!(" {mark}{name:<14} {why}"), 80),
    };
    let connected = r.connections.iter().filter(|c| c.connection == ConnectionState::Connected).count();
    let p99 = row.rates.p99_ns("write", "total").map(duration).unwrap_or_default();
    format!(
        " {mark}{name:<14} {:<5} {:<9} {:>5} {:>6} {:>6} {:>6} {:>6} {:>6} {}",
        &r.role.as_str()[..3],
        shortened(&worst_disk(r), 9),
        format!("{connected}/{}", r.connections.len()),
        bytes(row.rates.writes),
        bytes(row.rates.reads),
        bytes(row.rates.sent + row.rates.received),
        bytes(row.rates.disk_written + row.rates.disk_read),
        p99,
        sync(r)
    )
}

/// The state that matters of all volumes.
fn worst_disk(r: &ResourceStatus) -> String {
    r.devices.iter().map(|d| d.disk).min().map_or("-".to_owned(), |d: DiskState| d.to_string())
}

/// Percent of the resync or verify that is least done.
fn sync(r: &ResourceStatus) -> String {
    let running = r.connections.iter().flat_map(|c| &c.peer_devices);
    let least = running.filter_map(|p| query::percent_done(r, p)).reduce(f64::min);
    least.map_or(String::new(), |percent| format!("{percent:.0}%"))
}

/// What is the matter that weighs more than `below`.
fn sentences(row: &Row, below: Weight, width: u16) -> String {
    let of = row.matters.iter().filter(|m| m.weight < below);
    let told = of.map(|m| wrapped(&format!("{}: {m}", m.object), 0, 4, usize::from(width)));
    match &row.status {
        Ok(_) => told.collect(),
        Err(why) => wrapped(&format!("{}: {why}", row.name), 0, 4, usize::from(width)),
    }
}

fn about_row(row: &Row, color: bool, area: Rect) -> Paragraph<'static> {
    let mut text = sentences(row, Weight::Note, area.width);
    if text.is_empty() {
        text = format!("{}: nothing is the matter.", row.name);
    }
    let room = usize::from(area.height).saturating_sub(1);
    let all = text.lines().count();
    if all > room && room > 1 {
        text = text.lines().take(room - 1).map(|line| format!("{line}\n")).collect();
        text += &format!("    {} lines more: urbd status {}", all + 1 - room, row.name);
    }
    let style = style(row.weight(), color);
    Paragraph::new(Text::styled(format!("{}\n{text}", "-".repeat(usize::from(area.width))), style))
}

/// All about one resource. What goes on by itself stands with its volume.
fn detail(row: &Row, color: bool, width: u16) -> Vec<Line<'static>> {
    let mut lines: Vec<Line> = Vec::new();
    let bold = Style::new().add_modifier(Modifier::BOLD);
    for sentence in sentences(row, Weight::Running, width).lines() {
        lines.push(Line::styled(sentence.to_owned(), style(row.weight(), color)));
    }
    let Ok(r) = &row.status else { return lines };
    let hue = if r.role == Role::Primary { paint(color, Color::Cyan) } else { Style::new() };
    lines.push(Line::from(vec![Span::styled(format!("{}  ", row.name), bold), Span::styled(r.role.to_string(), hue)]));
    for d in &r.devices {
        let s = d.statistics.unwrap_or_default();
        let open = match d.open {
            Some(true) => "open",
            Some(false) => "not open",
            None => "",
        };
        let size = bytes(s.size_sectors as f64 * 512.0);
        let (vol, disk, pending) = (d.volume, d.disk, s.upper_pending);
        lines.push(Line::raw(format!("  volume {vol:<5} {disk:<13} {size:>6}  {open}  {pending} requests under way")));
    }
    for c in &r.connections {
        let role = if c.connection == ConnectionState::Connected { c.peer_role.as_str() } else { "" };
        lines.push(Line::from(vec![
            Span::raw(format!("  peer {:<14} ", shortened(&c.name, 14))),
            Span::styled(c.connection.to_string(), good_if(c.connection == ConnectionState::Connected, color)),
            Span::raw(format!("  {role}")),
        ]));
        for p in c.peer_devices.iter().filter(|p| p.replication != ReplicationState::Off) {
            let differ = bytes(p.statistics.map_or(0, |s| s.out_of_sync_sectors) as f64 * 512.0);
            let (vol, repl, disk) = (p.volume, p.replication, p.peer_disk);
            lines.push(Line::raw(format!("    volume {vol:<5} {repl:<13} {disk:<13} {differ:>6} to copy")));
            if query::percent_done(r, p).is_some() {
                lines.push(Line::raw(format!("      {}", query::progress_words(r, p))));
            }
        }
    }
    lines.push(Line::styled(
        format!("  {:<24} {:>8} {:>8} {:>8} {:>8} {:>8}", "REQUEST, STAGE", "NUMBER", "MEAN", "p50", "p99", "MOST"),
        bold,
    ));
    for s in row.rates.stages.iter().filter(|s| s.count() > 0) {
        lines.push(Line::raw(format!(
            "  {:<24} {:>8} {:>8} {:>8} {:>8} {:>8}",
            format!("{} {}", s.request, s.stage),
            s.count(),
            duration(s.mean_ns()),
            duration(s.percentile_ns(50.0)),
            duration(s.percentile_ns(99.0)),
            duration(s.percentile_ns(100.0))
        )));
    }
    if row.rates.stages.iter().all(|s| s.count() == 0) {
        lines.push(Line::raw("  no requests in the last second"));
    }
    lines
}

fn paint(color: bool, hue: Color) -> Style {
    if color { Style::new().fg(hue) } else { Style::new() }
}

fn good_if(good: bool, color: bool) -> Style {
    paint(color, if good { Color::Green } else { Color::Red })
}

fn style(weight: Weight, color: bool) -> Style {
    match weight {
        Weight::Error => paint(color, Color::Red),
        Weight::Warning | Weight::Running => paint(color, Color::Yellow),
        Weight::Note => Style::new(),
    }
}

/// With a dot at its end if it is longer.
fn shortened(text: &str, columns: usize) -> String {
    if text.chars().count() <= columns {
        return text.to_owned();
    }
    text.chars().take(columns - 1).chain(['.']).collect()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::super::state::{Key, Sort};
    use super::*;
    use crate::look::{Seen, Unseen};
    use control::{Attempt, ConnectionStatus, DeviceStatus, PeerDeviceStatus, StageLatency};

    /// Resource number `n`: its peer is missing if that is divisible by 7.
    fn seen(n: usize, writes: u64) -> Seen {
        let total = StageLatency {
            request: "write".into(),
            stage: "total".into(),
            sum_ns: writes * 80_000,
            buckets: vec![(1 << 17, writes)],
        };
        let device = DeviceStatus { latencies: vec![total], ..DeviceStatus::new(0, DiskState::UpToDate) };
        let peer = PeerDeviceStatus::new(0, ReplicationState::Established, DiskState::UpToDate);
        let connection = ConnectionStatus {
            peer_role: Role::Secondary,
            peer_devices: vec![peer],
            ..ConnectionStatus::new("bravo", ConnectionState::Connected)
        };
        let missing = ConnectionStatus {
            attempt: Some(Attempt::Refused),
            ..ConnectionStatus::new("bravo", ConnectionState::Connecting)
        };
        let status = ResourceStatus {
            role: Role::Primary,
            devices: vec![device],
            connections: vec![if n.is_multiple_of(7) { missing } else { connection }],
            ..ResourceStatus::new(&format!("res{n:03}"))
        };
        Seen { name: status.name.clone(), status: Ok(status) }
    }

    fn looked(resources: usize) -> State {
        let (mut state, begin) = (State::new(true), Instant::now());
        state.look((1..=resources).map(|n| seen(n, 0)).collect(), begin);
        state.look((1..=resources).map(|n| seen(n, n as u64)).collect(), begin + Duration::from_secs(1));
        state
    }

    fn screen(state: &State, width: u16, height: u16) -> Vec<String> {
        let mut buffer = Buffer::empty(Rect::new(0, 0, width, height));
        render(state, buffer.area, &mut buffer);
        let cell = |x, y| buffer.cell((x, y)).map_or("", |cell| cell.symbol()).to_owned();
        (0..height).map(|y| (0..width).map(|x| cell(x, y)).collect::<String>().trim_end().to_owned()).collect()
    }

    #[test]
    fn any_number_of_resources_fits_any_terminal() {
        for resources in [0, 1, 200] {
            for (width, height) in [(1, 1), (10, 3), (40, 8), (80, 24), (300, 90)] {
                let mut state = looked(resources);
                for key in [Key::Move(isize::MAX), Key::Detail, Key::Help, Key::Back, Key::Back, Key::Move(isize::MIN)]
                {
                    screen(&state, width, height);
                    // From the list of no resources, there is no way back but out.
                    assert!(state.press(key) || resources == 0);
                }
            }
        }
        assert!(screen(&looked(0), 80, 24)[2].contains("No resource runs on this node"));
        assert!(plain(&looked(0)).contains("urbd up RESOURCE"));
    }

    #[test]
    fn the_list_shows_states_and_rates_and_what_is_the_matter() {
        let state = looked(200);
        let lines = screen(&state, 80, 24);
        assert!(lines[0].starts_with("urbd  200 resources  sorted by state"));
        // Those without their peer come first; the first is selected, and explained.
        let figures = "0/1      7      0      0      0  131us";
        assert_eq!(lines[2], format!(">?res007         Pri   UpToDate    {figures}"));
        assert!(lines.iter().any(|l| l.starts_with("res007:bravo: bravo is not reached")), "{lines:#?}");
        assert!(plain(&state).lines().all(|l| l.chars().count() <= 80));
        assert_eq!(plain(&state).matches("is not reached").count(), 28);
    }

    #[test]
    fn the_selected_resource_stays_in_sight_and_selected() {
        let mut state = looked(200);
        state.press(Key::Sort);
        assert_eq!(state.sort, Sort::Name);
        state.press(Key::Move(isize::MIN));
        state.press(Key::Move(150));
        assert_eq!(state.selected.as_deref(), Some("res151"));
        assert!(screen(&state, 80, 24).iter().any(|l| l.starts_with("> res151")));
        state.press(Key::Sort);
        assert_eq!(state.rows[0].name, "res200", "most writes first");
        state.press(Key::Reverse);
        assert_eq!(state.rows[0].name, "res001");
        assert!(screen(&state, 80, 24).iter().any(|l| l.starts_with("> res151")));
        state.press(Key::Detail);
        let lines = screen(&state, 80, 24);
        let wanted = "  write total                   151     80us    131us    131us    131us";
        assert!(lines.iter().any(|l| l == wanted), "{lines:#?}");
        // It goes while it is looked at.
        state.look(vec![seen(1, 1)], Instant::now());
        assert!(!state.detail && state.selected.as_deref() == Some("res001"));
    }

    /// Three nodes, several volumes: it is longer than the screen, and all of it is seen.
    #[test]
    fn a_long_detail_is_scrolled() {
        let mut big = seen(1, 0);
        let status = big.status.as_mut().unwrap();
        status.devices = (0..8).map(|v| DeviceStatus::new(v, DiskState::UpToDate)).collect();
        let peers = |state| (0..8).map(|v| PeerDeviceStatus::new(v, state, DiskState::Inconsistent)).collect();
        status.connections[0].peer_devices = peers(ReplicationState::SyncSource);
        let other = ConnectionStatus {
            peer_devices: peers(ReplicationState::Established),
            ..ConnectionStatus::new("charlie", ConnectionState::Connected)
        };
        status.connections.push(other);
        let mut state = State::new(true);
        state.look(vec![big], Instant::now());
        let lines = screen(&state, 80, 24);
        assert!(lines[0].starts_with("urbd  1 resource  ") && lines[2].contains("2/2"), "{lines:#?}");
        assert!(lines[23].starts_with("    ") && lines[23].contains(" lines more: urbd status res001"), "{lines:#?}");
        state.press(Key::Detail);
        assert!(screen(&state, 80, 24).iter().any(|l| l.starts_with("res001  Primary")));
        state.press(Key::Move(isize::MAX));
        let end = screen(&state, 80, 24);
        assert_eq!(end[23], "  no requests in the last second");
        assert!(end.iter().any(|l| l.starts_with("  peer charlie")), "{end:#?}");
        state.press(Key::Move(-1));
        assert_eq!(
            screen(&state, 80, 24)[23],
            "  REQUEST, STAGE             NUMBER     MEAN      p50      p99     MOST"
        );
        assert_eq!(state.selected.as_deref(), Some("res001"));
    }

    #[test]
    fn who_does_not_answer_is_shown_and_keys_go_back_step_by_step() {
        let mut state = looked(1);
        state.look(
            vec![Seen { name: "res001".into(), status: Err(Unseen::Silent("no answer in time".into())) }],
            Instant::now(),
        );
        assert!(screen(&state, 80, 24)[2].starts_with(">!res001         no answer in time"));
        for key in [Key::Detail, Key::Help, Key::Back, Key::Back] {
            assert!(state.press(key));
        }
        assert!(!state.press(Key::Back) && !state.press(Key::Quit));
    }

    #[test]
    fn what_does_not_run_comes_first_with_its_reason() {
        let mut state = looked(1);
        let why = "its unit failed: cannot open /dev/sda: gone. Next: urbd up r9";
        let gone = Seen { name: "r9".into(), status: Err(Unseen::NotRunning(why.into())) };
        state.look(vec![seen(1, 0), gone], Instant::now());
        let lines = screen(&state, 80, 24);
        assert!(lines[2].starts_with(" !r9             not running: its unit failed"), "{lines:#?}");
        assert!(lines[3].contains("res001"), "{lines:#?}");
        let told = plain(&state).replace("\n    ", " ");
        assert!(told.contains(&format!("r9: not running: {why}")), "{told}");
    }

    #[test]
    fn without_colours_nothing_is_coloured() {
        let colored = |color| {
            let mut state = looked(20);
            state.color = color;
            let mut buffer = Buffer::empty(Rect::new(0, 0, 80, 24));
            render(&state, buffer.area, &mut buffer);
            buffer.content.iter().any(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset)
        };
        assert!(colored(true) && !colored(false));
    }
}
