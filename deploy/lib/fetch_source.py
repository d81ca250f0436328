"""Fetches a source archive of the Python registry and unpacks parts of it.

usage: fetch_source.py PROJECT VERSION SHA256 FOLDER PART...

Finds the archive in the registry's index (PIP_INDEX_URL, else https://pypi.org/simple), refuses it if the digest differs, and
unpacks its PARTs (files, or folders with their content) into FOLDER/PROJECT-VERSION.
"""
import hashlib
import html
import io
import os
import re
import sys
import tarfile
import time
import urllib.error
import urllib.parse
import urllib.request

ATTEMPTS = 3
SECONDS = 60


def read(url):
    for attempt in range(ATTEMPTS):
        try:
            with urllib.request.urlopen(url, timeout=SECONDS) as answer:
                return answer.read()
        except (OSError, urllib.error.URLError) as error:
            if attempt + 1 == ATTEMPTS:
                sys.exit(f"fetch_source: {url}: {error}")
            time.sleep(2**attempt)


def archive_url(project, name):
    index = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple").rstrip("/") + f"/{project}/"
    for link in re.findall(r'href="([^"]+)"', read(index).decode("utf-8", "replace")):
        url = urllib.parse.urljoin(index, html.unescape(link)).split("#")[0]
        if url.rsplit("/", 1)[-1] == name:
            return url
    sys.exit(f"fetch_source: {index} does not list {name}")


def unpack(archive, root, folder, parts):
    """Unpacks only plain files and folders below the parts; the archive's digest was checked."""
    taken = 0
    for member in archive:
        path = member.name.removeprefix(root + "/")
        wanted = any(path == part or path.startswith(part + "/") for part in parts)
        if wanted and member.isfile() and ".." not in path.split("/"):
            archive.extract(member, folder)
            taken += 1
    if taken == 0:
        sys.exit(f"fetch_source: {root} has none of {', '.join(parts)}")


def main():
    project, version, digest, folder, *parts = sys.argv[1:]
    root = f"{project}-{version}"
    url = archive_url(project, root + ".tar.gz")
    data = read(url)
    found = hashlib.sha256(data).hexdigest()
    if found != digest:
        sys.exit(f"fetch_source: {url} has the digest {found}, not {digest}")
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        unpack(archive, root, folder, parts)


if __name__ == "__main__":
    main()
