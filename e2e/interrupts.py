"""Being told to end is an interruption like Ctrl-C, so that whoever started a cluster takes it down.

Python runs `finally` for SIGINT alone; make, CI jobs and `timeout` send SIGTERM, a closed terminal SIGHUP.
"""

import signal
import threading
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGHUP)


def end_in_order() -> None:
    """From now on SIGTERM and SIGHUP raise KeyboardInterrupt, unless somebody chose otherwise.

    Does nothing outside the main thread, where no handler can be set.
    """
    if threading.current_thread() is threading.main_thread():
        for sig in SIGNALS:
            if signal.getsignal(sig) == signal.SIG_DFL:
                signal.signal(sig, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
