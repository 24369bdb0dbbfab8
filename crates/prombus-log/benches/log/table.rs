//! An aligned text table, and the formatting of numbers.

use std::fmt;
use std::time::Duration;

/// A table whose columns are as wide as their widest cell. The first column is text, the others are numbers.
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(heads: &[&str]) -> Self {
        Self { rows: vec![heads.iter().map(ToString::to_string).collect()] }
    }

    pub fn add(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }
}

impl fmt::Display for Table {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut widths = vec![0; self.rows.iter().map(Vec::len).max().unwrap_or(0)];
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        for (at, row) in self.rows.iter().enumerate() {
            for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
                if column == 0 {
                    write!(formatter, "{cell:<width$}")?;
                } else {
                    write!(formatter, "  {cell:>width$}")?;
                }
            }
            writeln!(formatter)?;
            if at == 0 {
                let line = widths.iter().sum::<usize>() + 2 * widths.len().saturating_sub(1);
                writeln!(formatter, "{}", "-".repeat(line))?;
            }
        }
        Ok(())
    }
}

/// A whole number with thousands separators.
pub fn grouped(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

pub fn percent(ratio: f64) -> String {
    format!("{:.0} %", ratio * 100.0)
}

pub fn micros(duration: Duration) -> String {
    grouped(duration.as_secs_f64() * 1e6)
}
