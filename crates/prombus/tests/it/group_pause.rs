//! The pause of a whole group survives restarts and power cuts, and a resume does too.

use crate::rig::{Rig, seqs};

#[test]
fn a_pause_that_was_answered_survives_every_power_cut_until_the_group_is_resumed() {
    let mut rig = Rig::new(1);
    rig.publish_numbers("orders", 3);
    let mut orders = rig.join(rig.bus.subscribe("orders", "billing").from_earliest().max_in_flight(1));
    let first = rig.next(&mut orders).expect("there is an event");
    rig.done(Box::pin(rig.bus.pause_group("orders", "billing"))).expect("pauses");
    rig.ack(&first);
    assert!(rig.all(&mut orders).is_empty());
    for after in rig.after_power_cuts() {
        let info = after.info("orders", "billing");
        assert!(info.is_paused, "the pause was durable");
        let mut orders = after.subscribe("orders", "billing");
        assert!(after.all(&mut orders).is_empty());
        after.done(Box::pin(after.bus.resume_group("orders", "billing"))).expect("resumes");
        assert_eq!(seqs(&after.all(&mut orders)), [2, 3]);
        for resumed in after.after_power_cuts() {
            assert!(!resumed.info("orders", "billing").is_paused, "the resume was durable");
            resumed.stop();
        }
        after.stop();
    }
    // A checkpoint contains the pause as well.
    rig = rig.restart();
    assert!(rig.info("orders", "billing").is_paused);
    let mut orders = rig.subscribe("orders", "billing");
    assert!(rig.all(&mut orders).is_empty());
    rig.done(Box::pin(rig.bus.delete_group("orders", "billing"))).expect("deletes");
    let mut recreated = rig.join(rig.bus.subscribe("orders", "billing").from_earliest());
    assert_eq!(seqs(&rig.all(&mut recreated)), [1, 2, 3], "a new group of that name is not paused");
    rig.stop();
}
