"""The fork server: its children belong to the supervisor, and share nothing that must be their own."""

import json
import os
import subprocess
import sys

from perseid.server.processes import CHILD_SIGNALS

_SUPERVISOR = """
import ctypes, json, os, random, signal, socket, sys, time, types
from cryptography.hazmat.primitives.asymmetric import x25519
from perseid.server.observe.counters import SharedCounters
from perseid.server.processes import fork_server

def main(text):
    options = json.loads(text)
    while os.getppid() != options["supervisor"]:  # its first parent ends now
        time.sleep(0.001)
    os.write(options["status"], json.dumps({
        "name": open("/proc/self/comm").read().strip(),
        "random": random.random(),
        "key": x25519.X25519PrivateKey.generate().private_bytes_raw().hex(),
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "input": os.read(0, 1).decode(),
        "same": [os.path.samestat(os.fstat(number), os.fstat(options["one"])) for number in options["many"]],
        "notify": os.environ.get("NOTIFY_SOCKET"),
    }).encode())
    return 7

module = types.ModuleType("child")
module.main = main
sys.modules["child"] = module
fork_server.PRELOADED = ()
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
pid, descriptor = fork_server.fork()
channel = socket.socket(fileno=descriptor)
fork_server.send_counters(channel, SharedCounters.create(1).descriptor)
shared = os.memfd_create("shared")
results = []
for number, is_known in enumerate((True, True, False)):
    status, status_writer = os.pipe()
    news, news_writer = os.pipe()
    options = {"name": f"child-{number}", "one": shared, "many": [shared] * 600, "status": status_writer, "news": news}
    options["supervisor"] = os.getpid()
    fork_server.request(channel, "child", options, ("one", "many", "status", "news"))
    os.close(status_writer)
    channel.setblocking(True)
    channel.recv(1, socket.MSG_PEEK)
    child = fork_server.read_reply(channel)
    if is_known:
        os.write(news_writer, b"news")
    os.close(news_writer)
    said = os.read(status, 1 << 16)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    results.append({"code": code, **json.loads(said or b"{}")})
channel.close()
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
print(json.dumps({"children": results, "code": code}))
"""


_SLOW_READER = """
import logging, os
from perseid.server.observe import logs
from perseid.server.processes import fork_server

reader, writer = os.pipe()
os.set_blocking(reader, False)
logs.configure("worker-0", "text", descriptor=writer)
for number in range(2_000):
    logging.getLogger("perseid").warning("line %d of more than the pipe takes", number)

def read(*_):
    received.append(os.read(reader, 1 << 20))
    return True

def end(code):
    read()
    print(b"".join(received).count(b" of more than "), flush=True)
    exit(code)

received, exit = [], os._exit
logs.LogOutput._is_writable, os._exit = read, end
fork_server._exit(7)
"""


def test_log_is_complete_when_a_process_has_ended() -> None:
    done = subprocess.run([sys.executable, "-c", _SLOW_READER], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (7, "2000\n"), done.stderr


def test_children_belong_to_the_supervisor_and_share_no_randomness() -> None:
    command = [sys.executable, "-c", _SUPERVISOR]
    environ = os.environ | {"NOTIFY_SOCKET": "/nowhere"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environ, timeout=60)
    result = json.loads(done.stdout)
    first, second, unknown = result["children"]
    for number, child in enumerate((first, second)):
        assert (child["name"], child["code"]) == (f"child-{number}", 7)
        assert (child["input"], child["notify"]) == ("", None)
        assert set(CHILD_SIGNALS) <= set(child["blocked"]), "until it has handlers"
        assert child["same"] == [True] * 600, "more descriptors than the kernel takes in one message"
    assert first["random"] != second["random"]
    assert first["key"] != second["key"]
    assert unknown == {"code": 0}, "a process that the supervisor does not know does nothing"
    assert result["code"] == 0
    assert done.stderr == ""
