//! Tables of numbers: as text in columns, as CSV, and as JSON.

use anyhow::Context;
use clap::Args;
use qkv_view::json::number;
use qkv_view::scene::token;
use qkv_view::show;
use serde_json::{Map, Value, json};
use unicode_width::UnicodeWidthStr;

/// One cell.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    Count(usize),
    Number(f64),
    /// A token, or another text from a file.
    Text(String),
    Nothing,
}

impl Cell {
    /// A text that may be missing.
    pub fn text(text: Option<&String>) -> Self {
        text.map_or(Self::Nothing, |text| Self::Text(text.clone()))
    }

    /// To be read by people.
    fn shown(&self) -> String {
        match self {
            Self::Count(count) => count.to_string(),
            Self::Number(x) => show::rounded(*x),
            Self::Text(text) => token(text),
            Self::Nothing => String::new(),
        }
    }

    /// With all its digits.
    fn exact(&self) -> String {
        match self {
            Self::Count(count) => count.to_string(),
            Self::Number(x) => x.to_string(),
            Self::Text(text) => text.clone(),
            Self::Nothing => String::new(),
        }
    }

    pub fn json(&self) -> Value {
        match self {
            Self::Count(count) => json!(count),
            Self::Number(x) => number(*x),
            Self::Text(text) => json!(text),
            Self::Nothing => Value::Null,
        }
    }
}

/// How tables are printed.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct Form {
    /// Print one JSON object and nothing else
    #[arg(long)]
    pub json: bool,

    /// Print a table with commas and nothing else
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,
}

/// Named columns, and rows of as many cells.
pub struct Table {
    pub columns: Vec<String>,
    pub rows: Vec<Vec<Cell>>,
}

impl Table {
    pub fn new(columns: &[&str], rows: Vec<Vec<Cell>>) -> Self {
        Self { columns: columns.iter().map(|name| name.to_string()).collect(), rows }
    }

    /// Tables of the same columns one after the other, with the name of each in a column of its own.
    pub fn joined(name: &str, tables: &[(&'static str, Self)]) -> Self {
        let mut columns = vec![name.to_string()];
        columns.extend(tables.first().map(|(_, table)| table.columns.clone()).unwrap_or_default());
        let named = |(name, table): &(&'static str, Self)| {
            let name = Cell::Text(name.to_string());
            table.rows.iter().map(|row| [std::slice::from_ref(&name), &row[..]].concat()).collect::<Vec<_>>()
        };
        Self { columns, rows: tables.iter().flat_map(named).collect() }
    }

    /// Without those of the named columns in which no row has anything: there are no tokens.
    pub fn filled(&self, optional: &[&str]) -> Self {
        let empty = |column: usize| self.rows.iter().all(|row| row[column] == Cell::Nothing);
        let kept: Vec<usize> = (0..self.columns.len())
            .filter(|&column| !(optional.contains(&self.columns[column].as_str()) && empty(column)))
            .collect();
        Self {
            columns: kept.iter().map(|&column| self.columns[column].clone()).collect(),
            rows: self
                .rows
                .iter()
                .map(|row| kept.iter().map(|&column| row[column].clone()).collect())
                .collect(),
        }
    }

    /// Lines in columns, numbers to the right, with the names above.
    pub fn lines(&self) -> Vec<String> {
        let names = &self.columns;
        let rows: Vec<Vec<String>> =
            self.rows.iter().map(|row| row.iter().map(Cell::shown).collect()).collect();
        let width = |column: usize| {
            let cells = rows.iter().map(|row| row[column].width());
            cells.chain([names[column].width()]).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..names.len()).map(width).collect();
        let line = |cells: &[String]| {
            let padded = cells
                .iter()
                .zip(&widths)
                .map(|(cell, &width)| format!("{}{cell}", " ".repeat(width.saturating_sub(cell.width()))));
            padded.collect::<Vec<_>>().join("  ").trim_end().to_string()
        };
        [names].into_iter().chain(&rows).map(|cells| line(cells)).collect()
    }

    /// A line of names, and one for each row.
    pub fn csv(&self) -> anyhow::Result<String> {
        let mut csv = csv::Writer::from_writer(Vec::new());
        csv.write_record(&self.columns)?;
        for row in &self.rows {
            csv.write_record(row.iter().map(Cell::exact))?;
        }
        csv.flush()?;
        String::from_utf8(csv.into_inner().context("a table cannot be written")?)
            .context("a table is no text")
    }

    /// An object for each row.
    pub fn json(&self) -> Value {
        let object = |row: &Vec<Cell>| -> Map<String, Value> {
            // In JSON, names have no spaces.
            let names = self.columns.iter().map(|name| name.replace([' ', '-'], "_"));
            names.zip(row.iter().map(Cell::json)).collect()
        };
        self.rows.iter().map(object).collect()
    }
}
