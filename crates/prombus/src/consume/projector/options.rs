//! The options of a projector, and its counters.

use super::ProjectorError;
use crate::clock::{Clock, SystemClock};
use prombus_protocol::{Start, Topic, TopicError, TopicFor};
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

/// The options of a projector that folds payloads of type `I` into states of type `S`. A projector needs a group, an
/// [`input`](Self::input) and an [`output`](Self::output); the rest has defaults.
///
/// Typed topics are checked against the types of the [`Projection`](super::Projection): exchanged topics do not compile.
///
/// ```
/// use prombus::consume::projector::ProjectorOptions;
///
/// prombus::topic! { PAYMENTS: i64 = "payments"; TOTALS: String = "totals"; }
/// let options = ProjectorOptions::<i64, String>::group("totals-projector").input(PAYMENTS).output(TOTALS);
/// ```
///
/// ```compile_fail,E0277
/// # use prombus::consume::projector::ProjectorOptions;
/// # prombus::topic! { PAYMENTS: i64 = "payments"; TOTALS: String = "totals"; }
/// let options = ProjectorOptions::<i64, String>::group("totals-projector").input(TOTALS).output(PAYMENTS);
/// ```
#[must_use = "options have no effect until a projector is opened with them"]
pub struct ProjectorOptions<I, S> {
    pub(super) group: String,
    /// `None` until it is set.
    input: Option<Result<Topic, TopicError>>,
    /// `None` until it is set.
    output: Option<Result<Topic, TopicError>>,
    pub(super) settings: ProjectorSettings,
    // Names the types without owning values of them.
    types: PhantomData<fn(I) -> S>,
}

/// The options that have defaults.
#[derive(Clone)]
pub(super) struct ProjectorSettings {
    pub(super) from: Start,
    pub(super) batch_size: u32,
    pub(super) tick_every: Option<Duration>,
    pub(super) clock: Arc<dyn Clock>,
}

impl<I, S> ProjectorOptions<I, S> {
    /// Options for a projector whose group has this name, with the defaults.
    pub fn group(group: impl Into<String>) -> Self {
        let settings = ProjectorSettings {
            from: Start::Earliest,
            batch_size: 100,
            tick_every: None,
            clock: Arc::new(SystemClock::default()),
        };
        Self { group: group.into(), input: None, output: None, settings, types: PhantomData }
    }

    /// The topic that is folded: a typed topic of the projection's [`Input`](super::Projection::Input), or a name.
    pub fn input(mut self, topic: impl TopicFor<I>) -> Self {
        self.input = Some(topic.topic());
        self
    }

    /// The topic of the states: a typed topic of the projection's [`State`](super::Projection::State), or a name.
    pub fn output(mut self, topic: impl TopicFor<S>) -> Self {
        self.output = Some(topic.topic());
        self
    }

    /// Where a new group starts. Default: at the oldest event.
    pub fn from(mut self, start: Start) -> Self {
        self.settings.from = start;
        self
    }

    /// The most events that are folded together. Default: 100.
    pub fn batch_size(mut self, events: u32) -> Self {
        self.settings.batch_size = events;
        self
    }

    /// How often [`Projection::tick`](super::Projection::tick) is called. Default: never.
    pub fn tick_every(mut self, interval: Duration) -> Self {
        self.settings.tick_every = Some(interval);
        self
    }

    /// The source of time. Default: the system clock.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.settings.clock = clock;
        self
    }

    /// The input and the output.
    pub(super) fn topics(&self) -> Result<(Topic, Topic), ProjectorError> {
        let set = |topic: &Option<Result<Topic, TopicError>>, name| match topic {
            Some(topic) => Ok(topic.clone()?),
            None => Err(ProjectorError::Missing(name)),
        };
        Ok((set(&self.input, "input")?, set(&self.output, "output")?))
    }
}

impl<I, S> Clone for ProjectorOptions<I, S> {
    fn clone(&self) -> Self {
        let (group, settings) = (self.group.clone(), self.settings.clone());
        let (input, output) = (self.input.clone(), self.output.clone());
        Self { group, input, output, settings, types: PhantomData }
    }
}

impl<I, S> std::fmt::Debug for ProjectorOptions<I, S> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = |topic: &Option<Result<Topic, TopicError>>| match topic {
            Some(Ok(topic)) => topic.to_string(),
            Some(Err(error)) => error.to_string(),
            None => "not set".to_owned(),
        };
        let (input, output) = (name(&self.input), name(&self.output));
        write!(formatter, "ProjectorOptions({}: {input} -> {output})", self.group)
    }
}

/// The counters of a projector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProjectorFigures {
    /// Events that were folded.
    pub folded: u64,
    /// Redelivered events that had been folded before.
    pub skipped: u64,
    /// Events that could not be folded.
    pub rejected: u64,
    /// States that were published.
    pub published: u64,
}
