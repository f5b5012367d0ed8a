//! Where words go: results to stdout, warnings and errors to stderr. What a terminal would obey is taken out of them, since
//! names and texts of files may hold anything.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};

use anstream::{AutoStream, ColorChoice};

/// Stdout and stderr. All output passes through here.
pub struct Terminal(Stdout);

impl Terminal {
    /// `goes_on` when nobody reads stdout any more, because a file is still to be written.
    pub fn new(goes_on: bool) -> Self {
        Self(Stdout { out: io::stdout(), goes_on, closed: false })
    }

    /// Whether stdout is a terminal that shows colours, and the user has not asked for none (`NO_COLOR`). A pipe never
    /// gets any.
    pub fn has_colours() -> bool {
        io::stdout().is_terminal() && AutoStream::choice(&io::stdout()) != ColorChoice::Never
    }

    /// Text with colours of ours in it, and nothing from a file that a terminal would obey.
    pub fn write_coloured(&mut self, text: &str) -> io::Result<()> {
        self.0.write_all(text.as_bytes())
    }

    /// A line on stderr for what is not wrong but odd.
    pub fn warn(&self, words: &str) {
        // Where stderr is closed there is nobody to warn.
        let _ = writeln!(io::stderr(), "qkv: warning: {}", harmless(words));
    }
}

impl Write for Terminal {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write_all(harmless(&String::from_utf8_lossy(bytes)).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// The line on stderr that says why the command failed.
pub fn complain(words: &str) {
    let line = words.split('\n').map(str::trim).filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ");
    // Where stderr is closed, the exit status still tells.
    let _ = writeln!(io::stderr(), "qkv: error: {}", harmless(&line));
}

/// Without what a terminal would obey. As JSON writes it, so that JSON stays JSON.
fn harmless(text: &str) -> Cow<'_, str> {
    let obeyed = |letter: char| letter.is_control() && letter != '\n';
    if !text.contains(obeyed) {
        return text.into();
    }
    let shown = |letter: char| match obeyed(letter) {
        true => format!("\\u{:04x}", u32::from(letter)),
        false => letter.to_string(),
    };
    text.chars().map(shown).collect()
}

struct Stdout {
    out: io::Stdout,
    goes_on: bool,
    closed: bool,
}

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.closed {
            return Ok(bytes.len());
        }
        match self.out.write(bytes) {
            Err(error) if self.goes_on && error.kind() == io::ErrorKind::BrokenPipe => {
                self.closed = true;
                Ok(bytes.len())
            }
            result => result,
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self.out.flush() {
            Err(error) if self.goes_on && error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            result => result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_is_written_out() {
        assert_eq!(harmless("a\u{1b}[31mb\u{9b}c\r\n"), "a\\u001b[31mb\\u009bc\\u000d\n");
        assert!(matches!(harmless("→ tensor 注意\n"), Cow::Borrowed(_)));
    }
}
