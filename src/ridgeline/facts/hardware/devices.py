"""Table of known devices: memory, bandwidth, FLOP/s by data type, link, price. Peaks of data sheets, dense (without sparsity).

1 GB = 10⁹ bytes: drivers report up to 7 % more, so plans stay below.
"""

from collections.abc import Mapping
from dataclasses import dataclass

GB, TERA = 10**9, 10**12


@dataclass(frozen=True, slots=True)
class Price:
    """Dollars per hour for one device, with the source and date of the price."""

    dollars_per_hour: float
    seen: str


@dataclass(frozen=True, slots=True)
class Device:
    """One device.

    memory_bytes           capacity
    bytes_per_second       memory bandwidth
    flops_per_second       peak by data type: "f32", "f16" (and bf16), "fp8", "int8"; others run as f16
    link_bytes_per_second  to its neighbours, both directions together
    hop_seconds            latency of one message between neighbours
    overhead_bytes         memory of driver, context and framework
    price                  None: unknown
    is_gpu                 True where it has a memory of its own
    compute_share          of the peaks, what steps reach: for estimates, which are within 10 % of sixteen published figures of a tuned
    bandwidth_share        engine (8B, fp8, H100 and H200) with these defaults: docs/physics.md. Of this machine they are measured
    head_share             as `compute_share`, of the head, of which a CPU computes a part (its screen); None: the same
    attention_share        as `compute_share`, of attention and recurrences: other kernels in another precision than the products'
    overlap                share of the shorter of computing and reading that the longer one hides, 0 … 1: all of it where copies run by
                           themselves; a core that unpacks and multiplies what it reads hides a part
    front_end_seconds      of a request between its client on the same machine and its steps; 0: not measured
    host_seconds           of a server's step beside its computing; 0: not measured
    spread                 what the same prompt takes in a server, one time and another, over its estimate, in ascending order; empty:
                           not measured
    """

    name: str
    memory_bytes: int
    bytes_per_second: float
    flops_per_second: Mapping[str, float]
    link_bytes_per_second: float
    hop_seconds: float = 2e-6
    overhead_bytes: int = 2 * GB
    price: Price | None = None
    is_gpu: bool = False
    compute_share: float = 0.5
    bandwidth_share: float = 0.75
    attention_share: float = 0.5
    head_share: float | None = None
    overlap: float = 1.0
    front_end_seconds: float = 0.0
    host_seconds: float = 0.0
    spread: tuple[float, ...] = ()

    def flops(self, kind: str) -> float:
        """FLOP/s for a data type; an unsupported type is computed as f16, and f16 as f32."""
        known = self.flops_per_second
        return known.get(kind) or known.get("f16") or known["f32"]


MARCH_2026 = "2026-03, a marketplace's lower list prices"
LIST_2025 = "2025, a specialised cloud's on-demand list"


def _gpu(
    name: str,
    gigabytes: int,
    gigabytes_per_second: float,
    tera: tuple[float, float, float, float],
    link: float,
    price: float | None,
    seen: str,
) -> Device:
    """`tera` is f32, f16, fp8, int8 in 10¹² per second; 0: not supported. Links below 200 GB/s are PCIe."""
    flops = {kind: value * TERA for kind, value in zip(("f32", "f16", "fp8", "int8"), tera, strict=True) if value}
    return Device(
        name=name,
        memory_bytes=gigabytes * GB,
        bytes_per_second=gigabytes_per_second * GB,
        flops_per_second=flops,
        link_bytes_per_second=link * GB,
        hop_seconds=2e-6 if link >= 200 else 8e-6,
        price=Price(price, seen) if price is not None else None,
        is_gpu=True,
    )


def _cpu_or_soc(name: str, gigabytes: int, gigabytes_per_second: float, tera: tuple[float, float, float], link: float) -> Device:
    """A CPU or SoC that computes in main memory; `tera` is f32, f16, int8 in 10¹² per second."""
    flops = {kind: value * TERA for kind, value in zip(("f32", "f16", "int8"), tera, strict=True) if value}
    return Device(name, gigabytes * GB, gigabytes_per_second * GB, flops, link * GB, hop_seconds=20e-6, overhead_bytes=GB // 2)


_ALL = (
    # NVIDIA data sheets: A100 (2021), H100 (2023), H200 (2024), HGX B200 (2025: 180 GB per device), L4, L40S, A10. Tables print sparse
    # peaks for Hopper and later; these are half of them. NVLink: 600, 900, 1,800 GB/s both directions; PCIe 4 × 16: 64, PCIe 5 × 16: 128.
    _gpu("a100-40gb", 40, 1_555, (19.5, 312, 0, 624), 600, 1.29, LIST_2025),
    _gpu("a100-80gb", 80, 2_039, (19.5, 312, 0, 624), 600, 1.39, MARCH_2026),
    _gpu("h100-sxm", 80, 3_350, (67, 989, 1_979, 1_979), 900, 2.69, MARCH_2026),
    _gpu("h100-pcie", 80, 2_000, (51, 756, 1_513, 1_513), 128, 1.99, MARCH_2026),
    _gpu("h200", 141, 4_800, (67, 989, 1_979, 1_979), 900, 3.59, MARCH_2026),
    _gpu("b200", 180, 8_000, (75, 2_250, 4_500, 4_500), 1_800, 5.98, MARCH_2026),
    _gpu("l4", 24, 300, (30.3, 121, 242, 242), 64, 0.44, MARCH_2026),
    _gpu("l40s", 48, 864, (91.6, 362, 733, 733), 64, 0.79, MARCH_2026),
    _gpu("a10", 24, 600, (31.2, 125, 0, 250), 64, 0.75, LIST_2025),
    # NVIDIA GA102, AD102 and GB202 white papers: tensor cores with f32 accumulation, which is half of the f16 accumulation rate.
    _gpu("rtx-3090", 24, 936, (35.6, 71, 0, 284), 64, 0.22, MARCH_2026),
    _gpu("rtx-4090", 24, 1_008, (82.6, 165, 330, 660), 64, 0.34, MARCH_2026),
    _gpu("rtx-5090", 32, 1_792, (104.8, 209, 419, 838), 128, 0.69, MARCH_2026),
    # AMD data sheet: eight devices fully connected, 896 GB/s each.
    _gpu("mi300x", 192, 5_300, (163, 1_307, 2_615, 2_615), 896, 2.49, LIST_2025),
    # Apple: bandwidth from its specifications, FLOP/s published for M2 and estimated from cores and clock for M3 and M4; f16 runs at the
    # rate of f32. The memory named is the largest that can be bought. The link is Thunderbolt.
    _cpu_or_soc("m2-ultra", 192, 800, (27.2, 27.2, 0), 10),
    _cpu_or_soc("m3-ultra", 512, 819, (28.2, 28.2, 0), 20),
    _cpu_or_soc("m4", 32, 120, (4.6, 4.6, 0), 10),
    _cpu_or_soc("m4-pro", 64, 273, (9.2, 9.2, 0), 20),
    _cpu_or_soc("m4-max", 128, 546, (18.4, 18.4, 0), 20),
    # Server CPUs, one socket: channels × DDR5 rate × 8 bytes; cores × base clock × operations per cycle (AVX-512; AMX on Xeon).
    # The memory is one module of 64 GB per channel. The link is 100 Gbit/s Ethernet, both directions.
    _cpu_or_soc("epyc-9654", 768, 460.8, (7.4, 14.7, 29.5), 25),
    _cpu_or_soc("epyc-9755", 768, 576, (22.1, 44.2, 88.5), 25),
    _cpu_or_soc("xeon-8480", 512, 307.2, (7.2, 229, 459), 25),
)
DEVICES: dict[str, Device] = {device.name: device for device in _ALL}
"""Keyed by name."""

_SHORT = {"a100": "a100-80gb", "h100": "h100-sxm", "a10040": "a100-40gb", "a10080": "a100-80gb", "4090": "rtx-4090", "3090": "rtx-3090",
          "5090": "rtx-5090"}  # fmt: skip
_BY_LETTERS = {name.replace("-", ""): device for name, device in DEVICES.items()} | {name: DEVICES[full] for name, full in _SHORT.items()}


DEVICE_NAMES = (*DEVICES, *_SHORT)
"""All names, the short ones too."""


def known_device(name: str) -> Device | None:
    """The device of the table that `name` means, whatever its case and separators ("RTX 4090"); None where there is none."""
    return _BY_LETTERS.get("".join(letter for letter in name.lower() if letter.isalnum()))
