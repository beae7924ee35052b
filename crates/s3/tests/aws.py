"""The AWS CLI with one start of the interpreter. Each line of standard input is a command, its arguments separated by tabs; it
is carried out in a child of its own. The answer: a line with exit code and length, and what the command printed."""

import os
import sys
import tempfile

from awscli.clidriver import create_clidriver

# Imports what commands import.
create_clidriver().session.create_client("s3")
for line in sys.stdin:
    with tempfile.TemporaryFile() as said:
        child = os.fork()
        if child == 0:
            os.dup2(said.fileno(), 1)
            os.dup2(said.fileno(), 2)
            code = 255
            try:
                code = create_clidriver().main(line.rstrip("\n").split("\t"))
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        said.seek(0)
        said = said.read()
        sys.stdout.buffer.write(b"%d %d\n" % (code, len(said)) + said)
        sys.stdout.buffer.flush()
