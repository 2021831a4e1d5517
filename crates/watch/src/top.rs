//! `urbd top`: the loop that owns the terminal. What is shown is [`view`]'s, what keys do [`state`]'s.

pub mod state;
pub mod view;

use std::io::{self, Write};
use std::time::{Duration, Instant};

use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode};
use ratatui::prelude::CrosstermBackend;
use ratatui::{Frame, Terminal};

use crate::look::{Looker, Unseen};
use state::{Key, State};

/// Distance of looks.
const LOOK: Duration = Duration::from_secs(1);

/// Shows the resources until a key ends it.
///
/// # Errors
/// When the terminal fails.
pub fn run(mut looker: Looker, color: bool) -> io::Result<()> {
    let mut terminal = Terminal::new(CrosstermBackend::new(io::stdout()))?;
    enable_raw_mode()?;
    let _restore = Restore;
    execute!(io::stdout(), EnterAlternateScreen)?;
    terminal.clear()?;
    let mut state = State::new(color);
    loop {
        let looked = Instant::now();
        state.look(looker.look(), looked);
        loop {
            terminal.draw(|frame: &mut Frame| view::draw(frame, &state))?;
            let left = LOOK.saturating_sub(looked.elapsed());
            if left.is_zero() || !event::poll(left)? {
                break;
            }
            match event::read()? {
                Event::Key(key) if key.kind != KeyEventKind::Release => {
                    if let Some(key) = meaning(key)
                        && !state.press(key)
                    {
                        return Ok(());
                    }
                }
                Event::Resize(..) => terminal.autoresize()?,
                _ => {}
            }
        }
    }
}

/// One plain picture of what happens within a second, for programs, mails and paper.
///
/// Gives the names of those that did not answer, and why.
///
/// # Errors
/// When it cannot be written.
pub fn snapshot(mut looker: Looker, out: &mut dyn Write) -> io::Result<Vec<(String, String)>> {
    let mut state = State::new(false);
    state.look(looker.look(), Instant::now());
    std::thread::sleep(LOOK);
    state.look(looker.look(), Instant::now());
    out.write_all(view::plain(&state).as_bytes())?;
    let silent = |row: &state::Row| match &row.status {
        Err(Unseen::Silent(why)) => Some((row.name.clone(), why.clone())),
        _ => None,
    };
    Ok(state.rows.iter().filter_map(silent).collect())
}

/// Gives the terminal back, whatever ends the program.
struct Restore;

impl Drop for Restore {
    fn drop(&mut self) {
        let _ = disable_raw_mode();
        let _ = execute!(io::stdout(), LeaveAlternateScreen, Show);
    }
}

fn meaning(key: KeyEvent) -> Option<Key> {
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return (key.code == KeyCode::Char('c')).then_some(Key::Quit);
    }
    Some(match key.code {
        KeyCode::Char('q') => Key::Quit,
        KeyCode::Esc | KeyCode::Backspace | KeyCode::Left | KeyCode::Char('h') => Key::Back,
        KeyCode::Enter | KeyCode::Right | KeyCode::Char('l') => Key::Detail,
        KeyCode::Up | KeyCode::Char('k') => Key::Move(-1),
        KeyCode::Down | KeyCode::Char('j') => Key::Move(1),
        KeyCode::PageUp => Key::Move(-10),
        KeyCode::PageDown => Key::Move(10),
        KeyCode::Home | KeyCode::Char('g') => Key::Move(isize::MIN),
        KeyCode::End | KeyCode::Char('G') => Key::Move(isize::MAX),
        KeyCode::Char('s') => Key::Sort,
        KeyCode::Char('r') => Key::Reverse,
        KeyCode::Char('?') => Key::Help,
        _ => return None,
    })
}
