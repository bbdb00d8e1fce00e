"""Links of a given rate and delay between processes of one machine: a network namespace for each rank, with a TUN
interface, and a relay in user space between them.

    python -m benchmarks.link_emulation [--rate 1e9] [--delay 1e-3] [--ranks 2]

The relay is a switch: a packet leaves its port at `rate`, arrives `delay` later, and enters the other port at `rate`.
No packet is lost or reordered. What runs above is the kernel's own TCP, so gloo needs no change. A kernel with netem
needs no relay; this one works with CONFIG_TUN alone, and needs root. The command prints what is measured: the time of a
round trip of UDP, and the throughput of TCP where both ends send at once, as in a ring.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import heapq
import json
import multiprocessing
import os
import select
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

INTERFACE = "slow0"
PARTS = 5
"""Times that the throughput is measured."""
MTU = 65000
"""Bytes of a packet: what the kernel passes to a network card that divides it into frames itself. With small packets
the relay would need a processor for itself."""
_TUNSETIFF, _TUN_WITHOUT_HEADER, _NEW_NETWORK = 0x400454CA, 0x1001, 0x40000000
_WAIT = multiprocessing.get_context("spawn")
_POLL = 50e-6
"""Seconds before a delivery for which the relay polls instead of sleeping."""


@dataclass(frozen=True)
class Emulated:
    """Namespaces by rank, with links of `rate` bit/s and `delay` seconds in one direction."""

    names: tuple[str, ...]
    rate: float
    delay: float

    def command(self, rank: int, arguments: Sequence[str]) -> list[str]:
        """The command that runs `python arguments` as a rank."""
        return ["ip", "netns", "exec", self.names[rank], sys.executable, *arguments]

    def environment(self) -> dict[str, str]:
        """Variables with which gloo takes the emulated link."""
        return {"GLOO_SOCKET_IFNAME": INTERFACE}


def address(rank: int) -> str:
    """The address of a rank."""
    return f"10.77.0.{rank + 1}"


def unavailable() -> str | None:
    """The reason why this machine cannot have such links, or None."""
    if sys.platform != "linux" or os.geteuid():
        return "links are emulated by root on Linux"
    if shutil.which("ip") is None:
        return "links are emulated with `ip` of iproute2"
    name = f"framesmith-{os.getpid()}-try"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    try:
        if made.returncode or subprocess.run(["ip", "netns", "exec", name, "true"], capture_output=True).returncode:
            return f"network namespaces cannot be made here: {made.stderr.strip()}"
        os.close(os.open("/dev/net/tun", os.O_RDWR))
    except OSError as error:
        return f"TUN interfaces cannot be made here: {error}"
    finally:
        if not made.returncode:
            subprocess.run(["ip", "netns", "del", name], check=False)
    return None


@contextlib.contextmanager
def emulated(ranks: int, rate: float, delay: float) -> Iterator[Emulated]:
    """Make namespaces and the relay between them; remove both at the end. Raises CalledProcessError without root."""
    names = tuple(f"framesmith-{os.getpid()}-{rank}" for rank in range(ranks))
    made: list[str] = []
    ours, theirs = _WAIT.Pipe()
    relay = _WAIT.Process(target=_relay, args=(names, rate, delay, theirs), daemon=True)
    try:
        for name in names:
            subprocess.run(["ip", "netns", "add", name], check=True)
            made.append(name)
        relay.start()
        if not ours.poll(60) or ours.recv() != "ready":
            raise RuntimeError("the relay of the links did not start")
        for rank, name in enumerate(names):
            for words in (f"addr add {address(rank)}/24 dev {INTERFACE}", f"link set {INTERFACE} mtu {MTU} up",
                          f"link set {INTERFACE} txqueuelen 10000", "link set lo up"):
                subprocess.run(["ip", "-n", name, *words.split()], check=True)
        yield Emulated(names, rate, delay)
    finally:
        if relay.pid is not None:
            relay.terminate()
            relay.join()
        for name in made:
            subprocess.run(["ip", "netns", "del", name], check=False)


def _interface(namespace: str) -> int:
    """Open a TUN interface in a namespace; this process stays within it."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/var/run/netns/{namespace}") as place:
        if libc.setns(place.fileno(), _NEW_NETWORK):
            raise OSError(ctypes.get_errno(), "setns")
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH22x", INTERFACE.encode(), _TUN_WITHOUT_HEADER))
    return tun


def _relay(names: Sequence[str], rate: float, delay: float, ready: Any) -> None:
    """Carry packets between the interfaces for ever."""
    ports = [_interface(name) for name in names]
    os.nice(-20)
    ready.send("ready")
    place = {port: k for k, port in enumerate(ports)}
    leaves, arrives = [0.0] * len(ports), [0.0] * len(ports)
    waiting: list[tuple[float, int, int, bytes]] = []
    number = 0
    while True:
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, _, target, packet = heapq.heappop(waiting)
            with contextlib.suppress(OSError):  # an interface that is not up yet takes nothing
                os.write(ports[target], packet)
        pause = max(0.0, waiting[0][0] - now - _POLL) if waiting else None
        for port in select.select(ports, [], [], pause)[0]:
            now = time.monotonic()
            for _ in range(8):
                try:
                    packet = os.read(port, 1 << 16)
                except BlockingIOError:
                    break
                target = packet[19] - 1
                if packet[0] >> 4 != 4 or packet[16:19] != b"\x0a\x4d\x00" or not 0 <= target < len(ports):
                    continue
                seconds, source = len(packet) * 8 / rate, place[port]
                leaves[source] = max(now, leaves[source]) + seconds
                arrives[target] = max(leaves[source] + delay, arrives[target] + seconds)
                heapq.heappush(waiting, (arrives[target], number, target, packet))
                number += 1


def _serve() -> None:
    """Answer datagrams; then send one connection as many bytes as it sends, each time that it says how many."""
    echo = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    echo.bind((address(0), 7001))
    stream = socket.create_server((address(0), 7002))
    print("ready", flush=True)
    while (said := echo.recvfrom(64))[0] != b"end":
        echo.sendto(*said)
    connection = stream.accept()[0]
    while size := connection.recv(16):
        _exchange(connection, int(size))
        connection.sendall(b"!")


def _exchange(connection: socket.socket, size: int) -> None:
    """Send `size` bytes and receive as many at the same time."""
    sender = threading.Thread(target=connection.sendall, args=(bytes(size),))
    sender.start()
    while size > 0 and (received := connection.recv(min(size, 1 << 20))):
        size -= len(received)
    sender.join()


def _measure(size: int) -> dict[str, float]:
    """The median seconds of a round trip, and bit/s of `size` bytes over TCP in each direction at once, in parts."""
    echo = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    times = []
    for _ in range(50):
        start = time.perf_counter()
        echo.sendto(b"ping", (address(0), 7001))
        echo.recv(64)
        times.append(time.perf_counter() - start)
    echo.sendto(b"end", (address(0), 7001))
    stream = socket.create_connection((address(0), 7002))
    rates = []
    for _ in range(PARTS):
        start = time.perf_counter()
        stream.sendall(b"%16d" % (size // PARTS))
        _exchange(stream, size // PARTS)
        stream.recv(1)
        rates.append(size // PARTS * 8 / (time.perf_counter() - start))
    return {"round_trip": statistics.median(times), "rate": statistics.median(rates)}


def checked(links: Emulated, size: int = 64 << 20) -> dict[str, float]:
    """Measure the link between ranks 0 and 1: `round_trip` in seconds, and `rate` in bit/s of each direction."""
    module = ["-m", "benchmarks.link_emulation"]
    server = subprocess.Popen(links.command(0, [*module, "--serve"]), stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    server.stdout.readline()
    try:
        done = subprocess.run(links.command(1, [*module, "--measure", str(size)]), capture_output=True, text=True,
                              check=True, timeout=120)
    finally:
        server.terminate()
        server.wait()
    return json.loads(done.stdout)


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=1e9, help="bit/s")
    parser.add_argument("--delay", type=float, default=1e-3, help="seconds in one direction")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--measure", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        _serve()
    elif asked.measure:
        print(json.dumps(_measure(asked.measure)))
    else:
        with emulated(asked.ranks, asked.rate, asked.delay) as links:
            print(json.dumps(checked(links)))


if __name__ == "__main__":
    _main()
