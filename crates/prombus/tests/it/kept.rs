//! Small values that the store keeps across restarts.

use crate::folder::Folder;
use prombus::Bus;

#[tokio::test]
async fn a_kept_value_is_the_first_one_stored_also_after_restarts() {
    let folder = Folder::new();
    for round in 0..3u8 {
        let bus = Bus::builder().open_blocking(folder.path()).expect("opens");
        let backend = bus.backend();
        if round == 0 {
            assert_eq!(backend.kept("key"), None);
        }
        let both =
            tokio::join!(backend.keep_first("key", vec![7 + round]), backend.keep_first("key", vec![200]));
        assert_eq!((both.0.expect("keeps"), both.1.expect("keeps")), (vec![7], vec![7]));
        assert_eq!(backend.keep_first("other", vec![1]).await.expect("keeps"), [1]);
        assert_eq!(backend.kept("key"), Some(vec![7]));
        // An event in between, so that a checkpoint contains the value.
        bus.publish("t", &u32::from(round)).await.expect("publishes");
        bus.close().await.expect("closes");
    }
    let memory = Bus::memory();
    assert_eq!(memory.backend().keep_first("key", vec![9]).await.expect("keeps"), [9]);
    assert_eq!(memory.backend().kept("key"), Some(vec![9]));
}
