#!/usr/bin/env python3
"""Every commit that was acknowledged must be there, and the database must be sound."""
import sqlite3, sys

marks = {int(line) for line in sys.stdin}
db = sqlite3.connect(sys.argv[1] + "/db")
if db.execute("pragma integrity_check").fetchone() != ("ok",):
    sys.exit("the database is damaged")
tables = db.execute("select count(*) from sqlite_master where name = 't'").fetchone()[0]
rows = dict(db.execute("select n, text from t")) if tables else {}
lost = sorted(marks - set(rows))
if lost:
    sys.exit(f"acknowledged and lost: {lost}")
if any(text != str(n) * 3000 for n, text in rows.items()):
    sys.exit("a row is not what was written")
