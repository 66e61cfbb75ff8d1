"""Ask at random times, whatever the answers take, and print how long they took.

    python bench/gateway/arrivals.py URL TOKEN RATE SECONDS

Requests arrive as a Poisson process has them, each at its own microsecond, and an answer's time counts from when its
request was due: a gateway that stands still is not asked less meanwhile. (wrk keeps its pauses in whole milliseconds:
at 10,000 requests a second ten at a time would come at once, again and again, which is another load than theirs.)
Prints milliseconds of the 50th, 90th and 99th percentile, and the share of the answers that were not 200, as JSON.
"""

import ctypes
import json
import os
import random
import re
import select
import socket
import statistics
import struct
import sys
import time
from collections import deque
from typing import Final
from urllib.parse import urlsplit

CONNECTIONS: Final = 64
"""Kept open. What is due while all of them wait for an answer waits, too, and its time counts."""
WARM: Final = 1.0
"""Seconds at the beginning that are not counted."""
PATIENCE: Final = 5.0
"""Seconds after the last request was due, until those without an answer are given up."""
_LENGTH: Final = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_CLOCK_MONOTONIC: Final = 1
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


class Alarm:
    """A timer that an epoll wakes by, to the microsecond: its own timeout counts milliseconds."""

    def __init__(self) -> None:
        self.fd: int = _LIBC.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "no timer to be had: Linux is needed")

    def set(self, seconds: float) -> None:
        """From now. One that rang is silent until it is set again."""
        nanoseconds = max(1, int(seconds * 1e9))
        value = struct.pack("qqqq", 0, 0, nanoseconds // 1_000_000_000, nanoseconds % 1_000_000_000)
        _LIBC.timerfd_settime(self.fd, 0, value, None)


class Asking:
    """Requests over kept connections, each answer's time from when its request was due."""

    def __init__(self, address: tuple[str, int], request: bytes) -> None:
        self._address = address
        self._request = request
        self._poll = select.epoll()
        self._alarm = Alarm()
        self._poll.register(self._alarm.fd, select.EPOLLIN | select.EPOLLET)
        self._by_fd: dict[int, socket.socket] = {}
        self._free: list[socket.socket] = []
        for _ in range(CONNECTIONS):
            self._connect()
        self._due: dict[int, float] = {}  #: by connection
        self._partial: dict[int, bytes] = {}
        self.answers: list[tuple[float, float, bool]] = []  #: when it was due, what it took, and whether it was a 200

    def _connect(self) -> None:
        sock = socket.create_connection(self._address)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._by_fd[sock.fileno()] = sock
        self._poll.register(sock, select.EPOLLIN)
        self._free.append(sock)

    def _closed(self, sock: socket.socket) -> None:
        """nginx does so after 1,000 requests. One that was not answered counts."""
        fd = sock.fileno()
        if fd in self._due:
            self.answers.append((self._due.pop(fd), PATIENCE, False))
        else:
            self._free.remove(sock)
        del self._by_fd[fd]
        sock.close()
        self._connect()

    def run(self, times: deque[float]) -> None:
        """`times`: ascending, of time.perf_counter."""
        end, alarm = times[-1] + PATIENCE, 0.0
        waiting: deque[float] = deque()
        while times or waiting or self._due:
            now = time.perf_counter()
            if now > end:
                break
            while times and times[0] <= now:
                waiting.append(times.popleft())
            while waiting and self._free:
                sock = self._free.pop()
                self._due[sock.fileno()] = waiting.popleft()
                sock.send(self._request)
            if (then := times[0] if times else end) != alarm:  # else it is set for that already
                alarm = then
                self._alarm.set(then - time.perf_counter())
            for fd, _ in self._poll.poll():
                if fd != self._alarm.fd:
                    self._read(fd)
        self.answers += [(due, PATIENCE, False) for due in (*self._due.values(), *waiting)]

    def _read(self, fd: int) -> None:
        sock = self._by_fd[fd]
        new = sock.recv(65536)
        data = self._partial.pop(fd, b"") + new
        if not new:
            self._closed(sock)
            return
        head = data.find(b"\r\n\r\n")
        length = _LENGTH.search(data, 0, head) if head > 0 else None
        if length is None or len(data) < head + 4 + int(length[1]):
            self._partial[fd] = data
            return
        due = self._due.pop(fd)
        self.answers.append((due, time.perf_counter() - due, data.startswith(b"HTTP/1.1 200")))
        self._free.append(sock)


def arrivals(rate: float, seconds: float, begin: float) -> deque[float]:
    """Independent of each other: what lies between two is distributed exponentially."""
    chance, at, found = random.Random(7), begin, deque[float]()
    while (at := at + chance.expovariate(rate)) < begin + seconds:
        found.append(at)
    return found


def main(url: str, token: str, rate: float, seconds: float, body: bytes) -> None:
    where = urlsplit(url)
    head = f"POST {where.path} HTTP/1.1\r\nHost: {where.netloc}\r\nAuthorization: Bearer {token}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    asking = Asking((where.hostname or "", where.port or 80), head.encode() + body)
    begin = time.perf_counter() + 0.1
    asking.run(arrivals(rate, WARM + seconds, begin))
    counted = [(took, good) for due, took, good in asking.answers if due > begin + WARM]
    cuts = statistics.quantiles((took for took, _ in counted), n=100)
    bad = sum(not good for _, good in counted) / len(counted)
    print(json.dumps({"p50": cuts[49] * 1000, "p90": cuts[89] * 1000, "p99": cuts[98] * 1000, "bad": bad}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4]), sys.stdin.buffer.read())
