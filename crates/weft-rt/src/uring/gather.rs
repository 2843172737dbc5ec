//! Buffers on their way out: what is left to write, as the kernel wants to see it.

use crate::Buf;

/// The most buffers that one system call takes: UIO_MAXIOV of the Linux kernel.
const IOV_MAX: usize = 1024;

/// A list of buffers and how much of it has been written.
pub(super) struct Gather {
    bufs: Vec<Buf>,
    /// The first buffer that is not written completely.
    first: usize,
    /// Bytes of it that are.
    skip: usize,
    iov: Vec<libc::iovec>,
    message: libc::msghdr,
}

impl Gather {
    pub(super) fn new() -> Box<Gather> {
        // SAFETY: a message header is integers and pointers, for which zero is a value: no buffers, no address.
        let message = unsafe { std::mem::zeroed::<libc::msghdr>() };
        Box::new(Gather { bufs: Vec::new(), first: 0, skip: 0, iov: Vec::new(), message })
    }

    /// Begins with these buffers.
    pub(super) fn load(&mut self, bufs: Vec<Buf>) {
        self.bufs = bufs;
        (self.first, self.skip) = (0, 0);
        self.advance(0);
    }

    /// Drops the buffers.
    pub(super) fn clear(&mut self) {
        self.bufs = Vec::new();
        self.iov.clear();
    }

    /// Counts `n` more bytes as written.
    ///
    /// # Panics
    /// If that is more than there are.
    pub(super) fn advance(&mut self, n: usize) {
        let mut n = n;
        while self.first < self.bufs.len() {
            let left = self.bufs[self.first].len() - self.skip;
            if n < left {
                self.skip += n;
                return;
            }
            n -= left;
            (self.first, self.skip) = (self.first + 1, 0);
        }
        assert_eq!(n, 0, "more was written than there was");
    }

    /// Points at what is left, up to what one call takes; false if nothing is.
    pub(super) fn point(&mut self) -> bool {
        self.iov.clear();
        let mut skip = self.skip;
        for buf in self.bufs[self.first..].iter().filter(|buf| !buf.is_empty()).take(IOV_MAX) {
            let rest = &buf[skip..];
            self.iov.push(libc::iovec { iov_base: rest.as_ptr().cast_mut().cast(), iov_len: rest.len() });
            skip = 0;
        }
        !self.iov.is_empty()
    }

    /// What [`Gather::point`] has found.
    pub(super) fn iov(&self) -> &[libc::iovec] {
        &self.iov
    }

    /// The same as a message for a socket. It holds until the next call of [`Gather::point`], as long as the
    /// value stays in its box.
    pub(super) fn message(&mut self) -> *const libc::msghdr {
        self.message.msg_iov = self.iov.as_mut_ptr();
        self.message.msg_iovlen = self.iov.len() as _;
        &raw const self.message
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(gather: &mut Gather) -> Vec<usize> {
        gather.point();
        gather.iov().iter().map(|v| v.iov_len).collect()
    }

    #[test]
    fn it_goes_on_where_the_last_call_stopped() {
        let mut gather = Gather::new();
        gather.load([0, 3, 0, 5, 2, 0].iter().map(|n| Buf::zeroes(*n)).collect());
        assert_eq!(left(&mut gather), [3, 5, 2]);
        gather.advance(2);
        assert_eq!(left(&mut gather), [1, 5, 2]);
        gather.advance(4);
        assert_eq!(left(&mut gather), [2, 2]);
        gather.advance(4);
        assert!(!gather.point());
        gather.load(vec![]);
        assert!(!gather.point());
    }

    #[test]
    fn one_call_takes_no_more_than_the_kernel_allows() {
        let mut gather = Gather::new();
        gather.load((0..IOV_MAX + 5).map(|_| Buf::zeroes(7)).collect());
        assert_eq!(left(&mut gather).len(), IOV_MAX);
        gather.advance(7 * IOV_MAX + 3);
        assert_eq!(left(&mut gather), [4, 7, 7, 7, 7]);
    }
}
