//! The course of a history: open, work, crash, and open again.

use super::*;

impl History {
    pub(super) fn new(seed: u64, lie: Option<SyncPoint>) -> Self {
        let mut random = Random::new(seed);
        let disk = Disk::new(seed);
        disk.lie_about(lie);
        let clock = HandClock::at(1_700_000_000_000);
        let listener = Listener::new();
        let options = Options {
            segment_bytes: 1024 * random.between(8, 40),
            first_segment_bytes: 8 * 1024,
            reserve_bytes: 8 * 1024,
            prepared_segments: random.between(1, 2) as usize,
            batch_bytes: random.between(1, 6) as usize * 1024,
            tail_bytes: random.below(3) as usize * 4096,
            checkpoint_bytes: 1024 * random.between(1, 12),
            index_cache_bytes: random.below(2) as usize * 4096,
            // Some histories last longer than the time for which ids are kept.
            kept_ids_bytes: u64::MAX,
            dedupe_ms: [7 * 24 * 60 * 60 * 1000, random.between(0, 200) as i64][random.below(2) as usize],
            clock: Arc::<HandClock>::clone(&clock),
            observer: Arc::<Listener>::clone(&listener),
            threads: false,
        };
        Self {
            random,
            disk,
            latest_ms: clock.now_ms(),
            clock,
            options,
            listener,
            appended: Vec::new(),
            durable: 0,
            next_number: 1,
            dead: Dead::default(),
            removed: HashSet::new(),
            lie,
            backups: 0,
            newest_server_id: EventId::default(),
            passing: PassingTopics::default(),
            cuts: HashSet::new(),
            refused: Refused::default(),
        }
    }

    /// Makes some reads fail: the next few, or all reads of some sectors.
    pub(super) fn disturb_reads(&mut self) {
        let random = &mut self.random;
        if random.one_in(2) {
            let (skipped, count) =
                ([2, 10, 60][random.below(3) as usize], [1, 5, 80][random.below(3) as usize]);
            self.disk.fail_reads(random.below(skipped), random.between(1, count));
            return;
        }
        let names = self.disk.names();
        if names.is_empty() {
            return;
        }
        let name = &names[random.below(names.len() as u64) as usize];
        let length = self.disk.contents(name).map_or(0, |contents| contents.len() as u64);
        let start = random.below(length + 1);
        let bytes = [1, 2_000, 20_000][random.below(3) as usize];
        self.disk.make_unreadable(name, start..start + random.between(1, bytes));
    }

    pub(super) fn run(&mut self) -> Check {
        let lives = self.random.between(2, 4);
        for _ in 0..lives {
            // Requested before the open, so that the cut may happen during recovery.
            if !self.random.one_in(6) {
                let reach = [6, 30, 100, 300][self.random.below(4) as usize];
                self.disk.cut_after(self.random.between(1, reach));
            }
            if self.random.one_in(4) {
                self.disturb_reads();
            }
            self.life()?;
            self.cuts.extend(self.disk.last_cut());
        }
        // At the end the power is on, and everything is readable.
        self.disk.cut_after(u64::MAX);
        self.disk.make_readable();
        let (log, state) = self.open()?.ok_or("the log did not open with the power on")?;
        self.check(&log, &state)?;
        self.check_lookups(&log)?;
        log.close().map_err(|error| format!("close: {error}"))?;
        let report = verify_storage(Arc::new(self.disk.clone()), |_| {})
            .map_err(|error| format!("verify: {error}"))?;
        ensure(report.faults.is_empty(), || format!("verify found {:?}", report.faults))?;
        ensure(report.torn_tail_bytes == 0, || "a torn tail after a clean close".to_owned())
    }

    /// Opens the log; `None` if the power went off.
    pub(super) fn open(&mut self) -> Result<Option<(Log, Remembered)>, String> {
        if self.disk.names().iter().any(|name| name == "MANIFEST") {
            let copy = self.disk.fork();
            let mut report = verify_storage(Arc::new(copy.clone()), |_| {});
            if matches!(report, Err(VerifyError::Open(OpenError::Unreadable { .. })))
                && copy.failed_reads() > 0
            {
                copy.make_readable();
                report = verify_storage(Arc::new(copy), |_| {});
            }
            let faults = report.map_err(|error| format!("verify: {error}"))?.faults;
            ensure(faults.is_empty(), || format!("verify reported a power cut as {faults:?}"))?;
        }
        let failed_before = self.disk.failed_reads();
        loop {
            let state = Remembered::default();
            let storage = Arc::new(self.disk.clone());
            match Log::open_storage(storage, self.options.clone(), Box::new(state.clone())) {
                Ok(log) => return Ok(Some((log, state))),
                Err(_) if self.disk.is_off() => return Ok(None),
                Err(OpenError::Unreadable { file, .. })
                    if !file.is_empty() && self.disk.failed_reads() > failed_before =>
                {
                    self.refused.opens += 1;
                    ensure(self.refused.opens < 1_000, || "the log does not open".to_owned())?;
                    // Transient errors may need several retries. Bad sectors are made readable.
                    if self.random.one_in(3) {
                        self.disk.make_readable();
                    }
                }
                Err(error) => return Err(format!("open: {error}")),
            }
        }
    }

    /// From an open to the next cut, kill or close.
    pub(super) fn life(&mut self) -> Check {
        let Some((log, state)) = self.open()? else {
            if self.random.one_in(3) {
                self.die(None);
            } else {
                self.disk.power_cut();
            }
            return Ok(());
        };
        if !self.disk.is_off() {
            // The result of an open of a disk with unreadable sectors must hold as well.
            self.disk.make_readable();
            self.check(&log, &state)?;
        }
        let steps = self.random.between(5, 90);
        for _ in 0..steps {
            if self.disk.is_off() {
                break;
            }
            self.step(&log)?;
        }
        self.take_acknowledged(&log);
        match self.random.below(8) {
            0 | 1 if !self.disk.is_off() => {
                // A clean close makes everything durable if the power stays on.
                if log.close().is_ok() {
                    self.acknowledge_all();
                }
                if self.random.one_in(2) || self.disk.is_off() {
                    self.disk.power_cut();
                }
            }
            2 | 3 => self.die(Some(log)),
            _ => {
                // Before the log is dropped, because dropping closes it, and the close must not change the disk.
                self.disk.cut_after(0);
                drop(log);
                self.disk.power_cut();
            }
        }
        Ok(())
    }

    /// Simulates `kill -9`, between two steps or during one. The page cache keeps everything that was written, synced or
    /// not. The history continues on a fork of the disk, and the old disk is switched off, so that dropping the log changes
    /// nothing.
    pub(super) fn die(&mut self, log: Option<Log>) {
        let survivor = self.disk.fork();
        survivor.reseed(self.random.next());
        self.disk.cut_after(0);
        drop(log);
        self.disk = survivor;
    }

    pub(super) fn step(&mut self, log: &Log) -> Check {
        if self.random.one_in(5) {
            self.clock.move_by(self.random.below(50) as i64 - 20);
            self.latest_ms = self.latest_ms.max(self.clock.now_ms());
        }
        match self.random.below(40) {
            0 | 1 => self.disturb_reads(),
            2 | 3 => self.disk.make_readable(),
            _ => {}
        }
        match self.random.below(20) {
            0..=7 => self.append(log)?,
            8..=13 => {
                log.step_commit();
                self.take_acknowledged(log);
            }
            14..=17 => {
                log.step_housekeeping();
            }
            18 if self.random.one_in(2) => self.clean(log)?,
            19 if self.random.one_in(2) => self.make_or_delete_topic(log)?,
            19 if self.random.one_in(3) => self.back_up(log)?,
            _ => self.check_visible(log)?,
        }
        Ok(())
    }
}
