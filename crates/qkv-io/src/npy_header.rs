//! The text in a `.npy` header: a Python dict of three entries, such as
//! `{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }`.
//!
//! Only what NumPy writes is understood: the three keys in any order, once each, with a string, a bool and a tuple
//! of whole numbers. A general parser of Python literals would recurse on hostile nesting and accept far more than
//! can be an array; this one is a loop over the text.

use crate::Fault;
use crate::error::MAX_AXES;

/// What the text says, not yet checked to make sense together.
#[derive(Debug, PartialEq)]
pub(crate) struct Header {
    pub descr: String,
    pub fortran_order: bool,
    pub shape: Vec<u64>,
}

impl Header {
    /// Reads the text between the length field and the data.
    pub fn parse(text: &[u8]) -> Result<Self, Fault> {
        let (mut descr, mut fortran_order, mut shape) = (None, None, None);
        let mut cursor = Cursor { text, at: 0 };
        cursor.expect(b'{')?;
        while !cursor.skip(b'}') {
            let key = cursor.string()?;
            cursor.expect(b':')?;
            match key {
                "descr" => set(&mut descr, key, cursor.descr()?)?,
                "fortran_order" => set(&mut fortran_order, key, cursor.boolean()?)?,
                "shape" => set(&mut shape, key, cursor.shape()?)?,
                _ => {
                    return Err(bad(format!("the key {key:?} is not one of descr, fortran_order and shape")));
                }
            }
            if !cursor.skip(b',') {
                cursor.expect(b'}')?;
                break;
            }
        }
        if cursor.peek().is_some() {
            return Err(cursor.wanted("nothing more after the closing brace"));
        }
        let missing = |key| move || bad(format!("the key {key:?} is missing"));
        Ok(Header {
            descr: descr.ok_or_else(missing("descr"))?,
            fortran_order: fortran_order.ok_or_else(missing("fortran_order"))?,
            shape: shape.ok_or_else(missing("shape"))?,
        })
    }
}

fn set<T>(entry: &mut Option<T>, key: &str, value: T) -> Result<(), Fault> {
    match entry.replace(value) {
        None => Ok(()),
        Some(_) => Err(bad(format!("the key {key:?} occurs twice"))),
    }
}

fn bad(reason: String) -> Fault {
    Fault::BadHeader { reason }
}

/// A place in the text. Each method skips white space first, then takes what it is named for.
struct Cursor<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn peek(&mut self) -> Option<u8> {
        while self.text.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
        self.text.get(self.at).copied()
    }

    fn skip(&mut self, byte: u8) -> bool {
        let there = self.peek() == Some(byte);
        if there {
            self.at += 1;
        }
        there
    }

    fn expect(&mut self, byte: u8) -> Result<(), Fault> {
        if self.skip(byte) { Ok(()) } else { Err(self.wanted(&format!("{:?}", char::from(byte)))) }
    }

    fn take_while(&mut self, fits: impl Fn(u8) -> bool) -> &'a [u8] {
        let rest = &self.text[self.at..];
        let length = rest.iter().position(|&byte| !fits(byte)).unwrap_or(rest.len());
        self.at += length;
        &rest[..length]
    }

    /// A string without escapes, in single or double quotes.
    fn string(&mut self) -> Result<&'a str, Fault> {
        let quote = match self.peek() {
            Some(quote @ (b'\'' | b'"')) => quote,
            _ => return Err(self.wanted("a string in quotes")),
        };
        self.at += 1;
        let inner = self.take_while(|byte| byte != quote && byte != b'\\' && byte != b'\n');
        if self.text.get(self.at) != Some(&quote) {
            return Err(self.wanted("the string's closing quote"));
        }
        self.at += 1;
        std::str::from_utf8(inner).map_err(|_| bad("a string in it is not utf-8".to_string()))
    }

    /// The element type: a string; a list would be a structured type.
    fn descr(&mut self) -> Result<String, Fault> {
        match self.peek() {
            Some(b'[' | b'(') => Err(Fault::UnsupportedDtype { found: "structured".to_string() }),
            _ => self.string().map(str::to_string),
        }
    }

    fn boolean(&mut self) -> Result<bool, Fault> {
        self.peek();
        let start = self.at;
        match self.take_while(|byte| byte.is_ascii_alphanumeric()) {
            b"True" => Ok(true),
            b"False" => Ok(false),
            _ => {
                self.at = start;
                Err(self.wanted("True or False"))
            }
        }
    }

    /// A tuple of whole numbers. As in Python, one number needs its comma: `(3,)`.
    fn shape(&mut self) -> Result<Vec<u64>, Fault> {
        let mut shape = Vec::new();
        self.expect(b'(')?;
        while !self.skip(b')') {
            if shape.len() == MAX_AXES {
                return Err(Fault::TooManyAxes);
            }
            shape.push(self.length()?);
            if !self.skip(b',') {
                if shape.len() == 1 {
                    return Err(self.wanted("a comma after the only length of the shape"));
                }
                self.expect(b')')?;
                break;
            }
        }
        Ok(shape)
    }

    fn length(&mut self) -> Result<u64, Fault> {
        self.peek();
        let start = self.at;
        let digits = self.take_while(|byte| byte.is_ascii_digit());
        // Python 2 wrote its long numbers with an L.
        if !digits.is_empty() && self.text.get(self.at) == Some(&b'L') {
            self.at += 1;
        }
        let ends = !self.text.get(self.at).is_some_and(|&byte| byte == b'.' || byte.is_ascii_alphanumeric());
        let number = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
        number.filter(|_| ends).ok_or_else(|| {
            self.at = start;
            self.wanted("a whole number from 0 to 2^64 - 1 as a length of the shape")
        })
    }

    /// The fault of not finding `what` here.
    fn wanted(&self, what: &str) -> Fault {
        const SHOWN: usize = 24;
        let rest = &self.text[self.at.min(self.text.len())..];
        let found = match rest {
            [] => "the end".to_string(),
            _ => format!("{:?}", String::from_utf8_lossy(&rest[..rest.len().min(SHOWN)])),
        };
        bad(format!("at byte {} it has {found} and should have {what}", self.at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(text: &str) -> String {
        match Header::parse(text.as_bytes()) {
            Err(fault) => fault.to_string(),
            Ok(header) => panic!("{text} was read as {header:?}"),
        }
    }

    #[test]
    fn what_numpy_writes_is_read() {
        let read = |text: &str| Header::parse(text.as_bytes()).unwrap();
        let header = read("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }      \n");
        assert_eq!(header, Header { descr: "<f4".into(), fortran_order: false, shape: vec![3, 4] });
        assert_eq!(read("{\"shape\":(),\"fortran_order\":True,\"descr\":\"|b1\"}").shape, [0u64; 0]);
        assert_eq!(read("{'descr': '<f4', 'fortran_order': False, 'shape': (7L,)}").shape, [7]);
    }

    #[test]
    fn malformed_text_is_refused_with_its_place() {
        for (text, wanted) in [
            ("", "at byte 0 it has the end"),
            ("[]", "should have '{'"),
            ("{'descr': '<f4'", "should have '}'"),
            ("{'descr': '<f4', 'fortran_order': False}", "\"shape\" is missing"),
            ("{'descr': '<f4', 'descr': '<f4'}", "\"descr\" occurs twice"),
            ("{'colour': 'red'}", "\"colour\" is not one of"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (3,)} + 1", "nothing more"),
            ("{'descr': '<f4', 'fortran_order': 0, 'shape': (3,)}", "True or False"),
            ("{'descr': 'a\\'b'}", "closing quote"),
            ("{'shape': (3)}", "a comma"),
            ("{'shape': [3, 4]}", "should have '('"),
            ("{'shape': (-1,)}", "\"-1,)}\" and should have a whole number"),
            ("{'shape': (1.5,)}", "whole number"),
            ("{'shape': (1e3,)}", "whole number"),
            ("{'shape': (0x10,)}", "whole number"),
            ("{'shape': (18446744073709551616,)}", "whole number"),
            ("{'shape': (3, 4", "should have ')'"),
        ] {
            let reason = reason(text);
            assert!(reason.contains(wanted), "{text}: {reason}");
        }
    }

    #[test]
    fn nesting_and_long_shapes_end_at_once() {
        assert!(reason(&format!("{{'descr': {}", "[".repeat(1_000_000))).contains("structured"));
        assert!(reason(&format!("{{'shape': ({}", "(".repeat(1_000_000))).contains("whole number"));
        assert!(reason(&format!("{{'shape': ({}", "1,".repeat(1_000_000))).contains("more than 64 axes"));
    }
}
