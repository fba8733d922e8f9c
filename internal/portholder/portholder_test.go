package portholder_test

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/portholder"
)

// TestMain is the other process, if it is asked to be.
func TestMain(m *testing.M) {
	if at := os.Getenv("PORTHOLDER_TEST_LISTEN"); at != "" {
		l, err := net.Listen("tcp", at)
		if err != nil {
			panic(err)
		}
		_, _ = fmt.Fprintln(os.Stdout, l.Addr())
		_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
		return
	}
	os.Exit(m.Run())
}

// listening is another process that listens, with the address that it has.
func listening(t *testing.T, at string) (address string, pid int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), "PORTHOLDER_TEST_LISTEN="+at)
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(line), cmd.Process.Pid
}

// TestNamesTheHolder: whatever of its addresses another process has.
func TestNamesTheHolder(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ has, wants string }{
		{"127.0.0.9:0", "127.0.0.9"}, {"127.0.0.9:0", ""}, {"0.0.0.0:0", "127.0.0.9"}, {"127.0.0.9:0", "0.0.0.0"},
	} {
		at, pid := listening(t, c.has)
		_, port, err := net.SplitHostPort(at)
		if err != nil {
			t.Fatal(err)
		}
		wants := net.JoinHostPort(c.wants, port)
		var lc net.ListenConfig
		l, err := lc.Listen(t.Context(), "tcp4", wants)
		if err == nil {
			_ = l.Close()
			t.Fatalf("%s does not keep %s from listening", at, wants)
		}
		said := portholder.Explain(err, wants)
		if want := fmt.Sprintf("(pid %d) listens there: stop it, or choose another address", pid); !errors.Is(said, err) || !strings.Contains(said.Error(), want) || !strings.Contains(said.Error(), `process "portholder`) {
			t.Errorf("%s beside %s: %v, want %s", wants, at, said, want)
		}
	}
}

// TestOtherErrors: one's own listener, an address of another host, no error.
func TestOtherErrors(t *testing.T) {
	t.Parallel()
	var lc net.ListenConfig
	own, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	_, err = lc.Listen(t.Context(), "tcp", own.Addr().String())
	if said := portholder.Explain(err, own.Addr().String()); said == nil || !strings.Contains(said.Error(), "this process itself listens there") {
		t.Errorf("one's own: %v", said)
	}
	if _, err = lc.Listen(t.Context(), "tcp", "192.0.2.1:0"); !errors.Is(portholder.Explain(err, "192.0.2.1:0"), err) || portholder.Explain(err, "192.0.2.1:0").Error() != err.Error() {
		t.Errorf("another host's: %v", err)
	}
	if portholder.Explain(nil, "127.0.0.1:80") != nil {
		t.Error("no error became one")
	}
}
