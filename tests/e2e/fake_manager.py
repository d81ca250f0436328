"""Fake of systemd's end of NOTIFY_SOCKET."""
import socket

import daemons


class FakeManager:
    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(path)
        self.socket.settimeout(daemons.PATIENCE)
        self.heard = []

    def until(self, wanted):
        """Receives messages until one has the line `wanted`."""
        while True:
            lines = self.socket.recv(65536).decode().split("\n")
            self.heard += lines
            if wanted in lines:
                return lines

    def close(self):
        self.socket.close()
