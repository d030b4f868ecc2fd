//! A list that is checked for emptiness far more often than used. The check takes no lock. During a change it may give
//! either answer; what was put in before, in the order that threads see things, is never missed.

use std::collections::HashMap;

use crate::sync::{AtomicUsize, Mutex, Ordering, lock};

pub(crate) trait Items {
    fn count(&self) -> usize;
}

impl<T> Items for Vec<T> {
    fn count(&self) -> usize {
        self.len()
    }
}

impl<K, V> Items for HashMap<K, V> {
    fn count(&self) -> usize {
        self.len()
    }
}

#[derive(Debug, Default)]
pub(crate) struct SharedList<T> {
    len: AtomicUsize,
    items: Mutex<T>,
}

impl<T: Items> SharedList<T> {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len.load(Ordering::Acquire) == 0
    }

    /// Returns what `f` does with the items.
    pub(crate) fn change<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        let mut items = lock(&self.items);
        let result = f(&mut items);
        // Before the unlock, or this could overwrite a later change's count.
        self.len.store(items.count(), Ordering::Release);
        result
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::sync::Arc;
    use loom::thread;

    use super::SharedList;
    use crate::sync::{AtomicBool, Ordering};

    fn push(list: &SharedList<Vec<u32>>, item: u32) {
        list.change(|items| items.push(item));
    }

    fn take(list: &SharedList<Vec<u32>>) -> Vec<u32> {
        list.change(std::mem::take)
    }

    #[test]
    fn what_was_put_in_before_is_not_missed() {
        loom::model(|| {
            let list = Arc::new(SharedList::<Vec<u32>>::default());
            let is_pushed = Arc::new(AtomicBool::new(false));
            let pusher = {
                let (list, is_pushed) = (Arc::clone(&list), Arc::clone(&is_pushed));
                thread::spawn(move || {
                    push(&list, 1);
                    is_pushed.store(true, Ordering::Release);
                })
            };
            if is_pushed.load(Ordering::Acquire) {
                assert!(!list.is_empty());
                assert_eq!(take(&list), [1]);
            }
            pusher.join().unwrap();
        });
    }

    #[test]
    fn each_item_is_taken_once_by_a_thread_that_asks_first() {
        loom::model(|| {
            let list = Arc::new(SharedList::<Vec<u32>>::default());
            let pushers = [1, 2].map(|item| {
                let list = Arc::clone(&list);
                thread::spawn(move || push(&list, item))
            });
            let mut taken = Vec::new();
            if !list.is_empty() {
                taken = take(&list);
                assert!(!taken.is_empty());
            }
            for pusher in pushers {
                pusher.join().unwrap();
            }
            if !list.is_empty() {
                taken.extend(take(&list));
            }
            taken.sort_unstable();
            assert_eq!(taken, [1, 2]);
            assert!(list.is_empty());
        });
    }
}
