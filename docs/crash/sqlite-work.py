#!/usr/bin/env python3
"""Commits rows to a SQLite database, and marks each commit that was acknowledged."""
import os, sqlite3, subprocess, sys

db = sqlite3.connect(sys.argv[1] + "/db")
db.execute("pragma synchronous = " + os.environ.get("SYNCHRONOUS", "extra"))
db.execute("create table t (n integer primary key, text)")
db.commit()
for n in range(10):
    db.execute("insert into t values (?, ?)", (n, str(n) * 3000))
    db.commit()
    subprocess.run(["ashlar", "prove", "mark", str(n)], check=True)
