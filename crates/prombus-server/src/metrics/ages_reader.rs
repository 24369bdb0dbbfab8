//! Reads the ages of the groups for `/metrics`, with at most one read at a time.
//!
//! A read may block on the disk. A scrape that gives up does not end it, so on a disk that hangs every scrape would block another
//! thread.

use parking_lot::Mutex;
use prombus::{Backend, GroupAge};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// The result of a read: `None` while it runs. The sender is dropped when the read has ended.
type AgesResult = watch::Receiver<Option<Arc<[GroupAge]>>>;

/// Reads the ages of the groups.
#[derive(Default)]
pub(crate) struct AgesReader {
    /// The last read.
    last: Mutex<Option<AgesResult>>,
}

impl AgesReader {
    /// The ages of the groups. If a read is already running, its result is returned. Empty if the read takes longer than
    /// `patience`; it then continues.
    pub(crate) async fn read(&self, backend: &Arc<dyn Backend>, patience: Duration) -> Arc<[GroupAge]> {
        let backend = Arc::clone(backend);
        self.read_with(async move { backend.group_ages().await }, patience).await
    }

    /// `new_read` is run only if no read is running.
    async fn read_with(
        &self,
        new_read: impl Future<Output = Vec<GroupAge>> + Send + 'static,
        patience: Duration,
    ) -> Arc<[GroupAge]> {
        let mut result = self.running_or_new(new_read);
        let read = tokio::time::timeout(patience, result.wait_for(Option::is_some)).await;
        match read {
            Ok(Ok(ages)) => ages.clone().unwrap_or_default(),
            Ok(Err(_)) | Err(_) => Arc::default(),
        }
    }

    fn running_or_new(&self, new_read: impl Future<Output = Vec<GroupAge>> + Send + 'static) -> AgesResult {
        let mut last = self.last.lock();
        // The sender of a read that has ended is gone.
        if let Some(running) = last.as_ref().filter(|it| it.has_changed().is_ok()) {
            return running.clone();
        }
        let (sender, receiver) = watch::channel(None);
        tokio::spawn(async move {
            let ages = new_read.await;
            sender.send_replace(Some(ages.into()));
        });
        *last = Some(receiver.clone());
        receiver
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::sync::Semaphore;

    #[tokio::test(start_paused = true)]
    async fn while_a_read_hangs_no_other_read_begins() {
        let (reader, started, hanging) =
            (AgesReader::default(), Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
        let read = || {
            let (started, hanging) = (Arc::clone(&started), Arc::clone(&hanging));
            let new_read = async move {
                started.fetch_add(1, Ordering::Relaxed);
                drop(hanging.acquire().await);
                Vec::new()
            };
            reader.read_with(new_read, Duration::from_secs(2))
        };
        for _ in 0..5 {
            assert!(read().await.is_empty());
        }
        assert_eq!(started.load(Ordering::Relaxed), 1);
        hanging.add_permits(1);
        read().await;
        tokio::task::yield_now().await;
        read().await;
        assert_eq!(started.load(Ordering::Relaxed), 2, "a read that has ended is not used again");
    }

    #[tokio::test]
    async fn after_a_read_that_panicked_another_one_begins() {
        let reader = AgesReader::default();
        let broken = reader.read_with(async { panic!("the store is broken") }, Duration::from_secs(20));
        assert!(broken.await.is_empty());
        let began = std::time::Instant::now();
        reader.read_with(async { Vec::new() }, Duration::from_secs(20)).await;
        assert!(began.elapsed() < Duration::from_secs(10));
    }
}
