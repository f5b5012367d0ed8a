//! Where words go: results to stdout, warnings and errors to stderr.

use std::io::{self, IsTerminal, Write};

use anstream::{AutoStream, ColorChoice};

/// Stdout and stderr. All output passes through here.
pub struct Terminal {
    out: io::Stdout,
    /// Goes on when nobody reads stdout any more, because a file is still to be written.
    goes_on: bool,
    closed: bool,
}

impl Terminal {
    pub fn new(goes_on: bool) -> Self {
        Self { out: io::stdout(), goes_on, closed: false }
    }

    /// Whether stdout is a terminal that shows colours, and the user has not asked for none (`NO_COLOR`). A pipe never
    /// gets any.
    pub fn has_colours() -> bool {
        io::stdout().is_terminal() && AutoStream::choice(&io::stdout()) != ColorChoice::Never
    }

    /// A line on stderr for what is not wrong but odd.
    pub fn warn(&self, words: &str) {
        // Where stderr is closed there is nobody to warn.
        let _ = writeln!(io::stderr(), "qkv: warning: {words}");
    }
}

/// The line on stderr that says why the command failed.
pub fn complain(words: &str) {
    let line = words.split('\n').map(str::trim).filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ");
    // Where stderr is closed, the exit status still tells.
    let _ = writeln!(io::stderr(), "qkv: error: {line}");
}

impl Write for Terminal {
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
