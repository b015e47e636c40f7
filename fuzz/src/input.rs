//! Reads decisions from a fuzzer's bytes, from the front on, so that a changed byte changes one decision. Pure.

/// What is left of the input. When nothing is left, every number is 0.
#[derive(Debug)]
pub(crate) struct Input<'a>(pub(crate) &'a [u8]);

impl<'a> Input<'a> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.bytes(1).first().copied().unwrap_or_default()
    }

    pub(crate) fn number(&mut self) -> usize {
        let [high, low] = [self.byte(), self.byte()];
        usize::from(u16::from_be_bytes([high, low]))
    }

    /// Up to `count` bytes.
    pub(crate) fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (front, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        front
    }

    /// One of `items`; none when there are none.
    pub(crate) fn choose<'b, T>(&mut self, items: &'b [T]) -> Option<&'b T> {
        let index = self.number().checked_rem(items.len())?;
        items.get(index)
    }
}
