"""Runs a check in a forked child, so that a fault, an abort or a hang is one failure with a name and not the end of the run."""
import os
import pickle
import select
import signal
import time
import traceback


def run(check, seconds=300):
    """check() -> list of failures, run in a child. A crash, an exception or silence is a failure too."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(read)
            try:
                answer = check()
            except Exception:
                answer = [traceback.format_exc()]
            with os.fdopen(write, "wb") as pipe:
                pipe.write(pickle.dumps(answer))
            code = 0
        finally:
            os._exit(code)
    os.close(write)
    data, end = bytearray(), time.monotonic() + seconds
    while True:
        ready, _, _ = select.select([read], [], [], max(0.0, end - time.monotonic()))
        part = os.read(read, 1 << 16) if ready else None
        if not part:
            break
        data += part
    os.close(read)
    if part is None:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if part is None:
        return [f"no answer within {seconds} s"]
    if os.WIFSIGNALED(status):
        return [f"ended by {signal.Signals(os.WTERMSIG(status)).name}"]
    return pickle.loads(bytes(data)) if data else [f"ended with exit code {os.WEXITSTATUS(status)} and no answer"]
