//! Tasks that add to the same numbers, one after the other.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::forward::Source;

/// Tasks by number. Each adds to one part of each result, and may begin when those of lower number that add to the same
/// parts are done; the lowest that may is handed out.
pub(super) struct Order {
    /// For each task and result which task is next at the same part; 0 if none is, for no other is before the first.
    next: Vec<usize>,
    results: usize,
    /// For each task, at how many parts others are before it.
    waits: Vec<usize>,
    ready: BinaryHeap<Reverse<usize>>,
}

impl Order {
    /// For each task the parts that it adds to, of as many as each result has.
    pub(super) fn new<Parts: IntoIterator<Item = usize>>(
        parts: &[usize],
        tasks: impl ExactSizeIterator<Item = Parts>,
    ) -> Self {
        let (total, results) = (tasks.len(), parts.len());
        let (mut next, mut waits) = (vec![0; total * results], vec![0; total]);
        let mut last: Vec<Vec<Option<usize>>> = parts.iter().map(|&count| vec![None; count]).collect();
        for (task, parts) in tasks.enumerate() {
            for ((result, last), part) in last.iter_mut().enumerate().zip(parts) {
                if let Some(before) = last[part].replace(task) {
                    next[before * results + result] = task;
                    waits[task] += 1;
                }
            }
        }
        let ready = (0..total).filter(|&task| waits[task] == 0).map(Reverse).collect();
        Self { next, results, waits, ready }
    }
}

impl Source for Order {
    type Task = usize;

    fn next(&mut self) -> Option<(usize, usize)> {
        self.ready.pop().map(|Reverse(task)| (task, task))
    }

    fn ready(&self) -> usize {
        self.ready.len()
    }

    fn done(&mut self, task: usize) {
        for &next in self.next[task * self.results..][..self.results].iter().filter(|&&next| next > 0) {
            self.waits[next] -= 1;
            if self.waits[next] == 0 {
                self.ready.push(Reverse(next));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of two results, one with a part for each row and one with a part for each column.
    #[test]
    fn a_task_begins_when_its_parts_are_free() {
        let mut order = Order::new(&[2, 2], [[0, 0], [0, 1], [1, 0], [1, 1]].into_iter());
        assert_eq!(order.next(), Some((0, 0)));
        assert_eq!(order.next(), None);
        order.done(0);
        assert_eq!(order.ready(), 2);
        assert_eq!(order.next(), Some((1, 1)));
        order.done(1);
        assert_eq!(order.next(), Some((2, 2)));
        assert_eq!(order.next(), None);
        order.done(2);
        assert_eq!(order.next(), Some((3, 3)));
    }
}
