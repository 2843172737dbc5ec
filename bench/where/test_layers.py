"""What a stack is taken for."""

import unittest

import layers

SCRIPT = """
\tffffffff82201ea7 _copy_from_iter ([kernel.kallsyms])
\tffffffff82011393 tcp_sendmsg ([kernel.kallsyms])
\t          101829 syscall (/usr/lib/libc.so.6)
\t         116137d weft_rt::uring::Driver::turn (/opt/weft)

\t          7ffe10 __vdso_clock_gettime ([vdso])
\t         116137d weft_rt::uring::Driver::turn (/opt/weft)

\t          7ffe10 __vdso_clock_gettime ([vdso])
\t          aa314a <weft_target::target::Target as weft_rt::server::Handler>::handle::{{closure}} (/opt/weft)

\t          1a2b3c __memcpy_avx512_unaligned_erms (/usr/lib/libc.so.6)
\t          bd0487 weft_store::read::<impl weft_store::store::Store>::collect (/opt/weft)

\t          bd0487 core::slice::sort (/opt/weft)
\t          bd0487 weft_store::read::<impl weft_store::store::Store>::collect (/opt/weft)

\tffffffff81b44d2e io_submit_sqes ([kernel.kallsyms])
\tffffffff81b40a8b __do_sys_io_uring_enter ([kernel.kallsyms])
\t          101829 syscall (/usr/lib/libc.so.6)
\t          a78938 weft_client::volume::Volume::write (/opt/weft)

\tffffffff81e32fbe sock_def_readable ([kernel.kallsyms])
\tffffffff8201fc6e tcp_rcv_established ([kernel.kallsyms])

\tffffffffffffffff [unknown] ([unknown])
"""

CALLGRIND = """
version: 1
positions: line
events: Ir
summary: 1234

ob=(1) /opt/weft
fl=(1) ???
fn=(7) weft_store::read::collect
0 30
cfn=(8) mi_free
calls=5 0
0 50
0 4

fn=(8)
0 20

fn=(7)
0 6
totals: 60
"""


class Layers(unittest.TestCase):
    def test_the_innermost_name_that_says_something_decides(self):
        found = [layers.layer_of(stack) for stack in layers.stacks_of(SCRIPT.splitlines())]
        self.assertEqual(found, [layers.COPY_KERNEL, layers.WAITING, layers.CLOCK, layers.COPY, layers.STORE, layers.KERNEL,
                                 layers.SCHEDULER, layers.OTHER])

    def test_time_is_divided_by_requests(self):
        stacks = list(layers.stacks_of(SCRIPT.splitlines()))
        times = layers.per_request(stacks, samples_per_s=1000, requests=4)
        self.assertEqual(list(times), layers.LAYERS)
        self.assertAlmostEqual(times[layers.COPY], 1e6 / 4)
        self.assertAlmostEqual(sum(times.values()), len(stacks) * 1e6 / 4)

    def test_what_a_function_calls_is_not_its_own(self):
        counts = list(layers.counts_of(CALLGRIND.splitlines()))
        self.assertEqual(counts, [("weft_store::read::collect", 30), ("weft_store::read::collect", 4), ("mi_free", 20),
                                  ("weft_store::read::collect", 6)])


if __name__ == "__main__":
    unittest.main()
