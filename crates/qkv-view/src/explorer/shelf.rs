//! Things that are kept as long as there is room; those not looked at for the longest time go first.

use std::hash::Hash;

use lru::LruCache;

pub(super) struct Shelf<K: Hash + Eq, V> {
    /// With the bytes of each.
    kept: LruCache<K, (V, usize)>,
    bytes: usize,
    most: usize,
}

impl<K: Hash + Eq, V> Shelf<K, V> {
    pub fn new(most_bytes: usize) -> Self {
        Self { kept: LruCache::unbounded(), bytes: 0, most: most_bytes }
    }

    pub fn get(&mut self, key: &K) -> Option<&V> {
        self.kept.get(key).map(|(value, _)| value)
    }

    /// Keeps it, however large it is, and lets go of others that may.
    pub fn put(&mut self, key: K, value: V, bytes: usize, may_go: impl Fn(&V) -> bool) {
        let mut stay = Vec::new();
        while self.bytes + bytes > self.most {
            let Some((other, (kept, size))) = self.kept.pop_lru() else { break };
            self.bytes -= size;
            if !may_go(&kept) {
                stay.push((other, (kept, size)));
            }
        }
        for (other, (kept, size)) in stay {
            self.bytes += size;
            self.kept.push(other, (kept, size));
        }
        if let Some((_, (_, before))) = self.kept.push(key, (value, bytes)) {
            self.bytes -= before;
        }
        self.bytes += bytes;
    }

    /// From the one looked at last.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.kept.iter().map(|(_, (value, _))| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_go_when_there_is_no_room() {
        let mut shelf = Shelf::new(10);
        for key in 0..3 {
            shelf.put(key, key, 4, |_| true);
            shelf.get(&0);
        }
        assert_eq!([0, 1, 2].map(|key| shelf.get(&key).copied()), [Some(0), None, Some(2)]);
        // The same again takes no more room.
        shelf.put(2, 7, 2, |_| true);
        assert_eq!([0, 2].map(|key| shelf.get(&key).copied()), [Some(0), Some(7)]);
        shelf.put(3, 3, 99, |kept| *kept != 7);
        let mut kept: Vec<_> = shelf.values().copied().collect();
        kept.sort_unstable();
        assert_eq!((kept, shelf.bytes), (vec![3, 7], 101));
        shelf.put(4, 4, 1, |_| true);
        assert_eq!((shelf.values().copied().collect::<Vec<_>>(), shelf.bytes), (vec![4], 1));
    }
}
