"""Writes docs/images/report.png: the first screen of the report of the demo's job, as Chromium shows it.

python docs/report_picture.py
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
SIZE = "1400,1180"


def main() -> None:
    """Run the demo, make its report and take the picture."""
    with tempfile.TemporaryDirectory() as home:
        demo = shutil.copytree(ROOT / "examples/demo", Path(home) / "demo")  # its path is in the report
        subprocess.run([sys.executable, str(demo / "demo.py"), "--keep", home], check=True)
        page, picture = Path(home) / "report.html", ROOT / "docs/images/report.png"
        ftctl = [str(Path(sys.executable).parent / "ftctl"), "--store", f"sqlite://{home}/log", "--job", "stormy"]
        subprocess.run([*ftctl, "report", "-o", str(page)], check=True)
        chromium = ["chromium", "--headless", "--no-sandbox", "--hide-scrollbars", "--virtual-time-budget=5000"]
        chromium += [f"--window-size={SIZE}", f"--user-data-dir={home}/chromium", f"--screenshot={picture}"]
        subprocess.run([*chromium, page.as_uri()], check=True, env=os.environ | {"HOME": home})


if __name__ == "__main__":
    main()
