"""A command whose terminal is the one with this descriptor, and which gets its signals: Ctrl-C, and new sizes."""

import os
import sys

if __name__ == "__main__":
    terminal, *command = sys.argv[1:]
    os.login_tty(int(terminal))
    os.execvp(command[0], command)
