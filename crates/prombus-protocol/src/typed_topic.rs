//! Topics with a payload type, and the trait of everything that can be used as a topic.

use crate::topic_name::{NameFault, Topic, TopicError, fault_of};
use std::fmt;
use std::marker::PhantomData;

/// A topic whose payloads are of type `T`. The [`topic!`](crate::topic!) macro creates one and checks its name at compile time.
pub struct TypedTopic<T: ?Sized> {
    name: &'static str,
    // Names `T` without owning one: the constant stays Copy, Send and Sync whatever `T` is.
    payload: PhantomData<fn() -> Box<T>>,
}

impl<T: ?Sized> TypedTopic<T> {
    /// A topic with this name. In a constant, an invalid name is a compile error.
    ///
    /// # Panics
    /// If the name breaks the rules of [`Topic`].
    pub const fn new(name: &'static str) -> Self {
        match fault_of(name.as_bytes(), false) {
            None => Self { name, payload: PhantomData },
            Some(NameFault::Empty) => panic!("empty topic name"),
            Some(NameFault::TooLong) => panic!("topic name of more than 255 bytes"),
            Some(NameFault::Character(_)) => {
                panic!("topic name with a character other than A-Z a-z 0-9 . _ : -")
            }
            Some(NameFault::EmptySegment(_)) => panic!("topic name with an empty segment between dots"),
        }
    }

    /// The topic's name.
    pub const fn name(&self) -> &'static str {
        self.name
    }
}

impl<T: ?Sized> Clone for TypedTopic<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: ?Sized> Copy for TypedTopic<T> {}

impl<T: ?Sized> fmt::Debug for TypedTopic<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.name, f)
    }
}

impl<T: ?Sized> fmt::Display for TypedTopic<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Defines constants of type [`TypedTopic`]. An invalid name does not compile.
///
/// ```
/// struct Heartbeat {
///     pid: u32,
/// }
///
/// prombus_protocol::topic! {
///     /// Sent by every process, once a second.
///     pub HEARTBEAT: Heartbeat = "heartbeat.received";
///     NAMES: String = "names";
/// }
/// assert_eq!(HEARTBEAT.name(), "heartbeat.received");
/// ```
///
/// ```compile_fail,E0080
/// prombus_protocol::topic!(HEARTBEAT: u32 = "heartbeat received");
/// ```
#[macro_export]
macro_rules! topic {
    ($($(#[$attribute:meta])* $visibility:vis $name:ident : $payload:ty = $topic:expr);+ $(;)?) => {
        $(
            $(#[$attribute])*
            $visibility const $name: $crate::TypedTopic<$payload> = $crate::TypedTopic::new($topic);
        )+
    };
}

impl<T: ?Sized> From<TypedTopic<T>> for String {
    fn from(topic: TypedTopic<T>) -> Self {
        topic.name().to_owned()
    }
}

/// A value that can be used as a topic with payloads of type `T`: any name, or a [`TypedTopic`] of the same type.
///
/// ```compile_fail,E0277
/// use prombus_protocol::{TopicFor, topic};
///
/// topic!(NAMES: String = "names");
/// fn publish<T>(topic: impl TopicFor<T>, payload: &T) {}
/// publish(NAMES, &7_u32); // NAMES takes strings
/// ```
pub trait TopicFor<T: ?Sized> {
    /// The topic.
    ///
    /// # Errors
    /// Says which rule the name breaks.
    fn topic(&self) -> Result<Topic, TopicError>;
}

impl<T: ?Sized> TopicFor<T> for &str {
    fn topic(&self) -> Result<Topic, TopicError> {
        Topic::new(self)
    }
}

impl<T: ?Sized> TopicFor<T> for String {
    fn topic(&self) -> Result<Topic, TopicError> {
        Topic::new(self)
    }
}

impl<T: ?Sized> TopicFor<T> for &String {
    fn topic(&self) -> Result<Topic, TopicError> {
        Topic::new(self)
    }
}

impl<T: ?Sized> TopicFor<T> for Topic {
    fn topic(&self) -> Result<Topic, TopicError> {
        Ok(self.clone())
    }
}

impl<T: ?Sized> TopicFor<T> for &Topic {
    fn topic(&self) -> Result<Topic, TopicError> {
        Ok((*self).clone())
    }
}

impl<T: ?Sized> TopicFor<T> for TypedTopic<T> {
    fn topic(&self) -> Result<Topic, TopicError> {
        Topic::new(self.name)
    }
}

impl<T: ?Sized> TopicFor<T> for &TypedTopic<T> {
    fn topic(&self) -> Result<Topic, TopicError> {
        Topic::new(self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    topic! {
        /// Documented.
        pub(crate) NUMBERS: u32 = "numbers";
        LETTERS: str = "letters.all"
    }

    fn name_of<T: ?Sized>(topic: impl TopicFor<T>, _: &T) -> String {
        topic.topic().unwrap().to_string()
    }

    #[test]
    fn names_and_typed_topics_can_be_used_as_topics() {
        assert_eq!(name_of(NUMBERS, &7), "numbers");
        let numbers = &NUMBERS;
        assert_eq!(name_of(numbers, &7), "numbers");
        assert_eq!(name_of(LETTERS, "a"), "letters.all");
        assert_eq!(name_of("numbers", &7), "numbers");
        let (string, topic) = ("numbers".to_owned(), Topic::new("numbers").unwrap());
        assert_eq!(name_of::<u32>(&string, &7), "numbers");
        assert_eq!(name_of::<u32>(&topic, &7), "numbers");
        assert_eq!(name_of(topic, &7), "numbers");
        assert_eq!(name_of(string, &7), "numbers");
        assert!(TopicFor::<u32>::topic(&"no such name").is_err());
    }
}
