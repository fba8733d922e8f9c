package main

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// TestSignalEndsWhatWaitsForInput: a command that reads its standard input has
// no other way to learn that nobody wants its answer any more.
func TestSignalEndsWhatWaitsForInput(t *testing.T) {
	t.Parallel()
	if os.Getenv("FAIRLEAD_TEST_WAITS") != "" {
		os.Args = []string{"fairlead", "validate", "-"}
		main()
		return
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, "-test.run=^TestSignalEndsWhatWaitsForInput$")
	cmd.Env = append(os.Environ(), "FAIRLEAD_TEST_WAITS=1")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	// The pipe takes more than it holds only when somebody reads it: then main
	// has come to that.
	if _, err := stdin.Write(make([]byte, 256<<10)); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ended:
	case <-time.After(2 * time.Minute):
		t.Error("it still waits for its input after SIGTERM")
		_ = cmd.Process.Kill()
		<-ended
	}
}

// TestServerLogsItsEnd: the log of a server that was stopped says why it ends,
// and that it has ended in order.
func TestServerLogsItsEnd(t *testing.T) {
	t.Parallel()
	if dir := os.Getenv("FAIRLEAD_TEST_SERVES"); dir != "" {
		os.Args = []string{
			"fairlead", "server", "--config-dir", dir + "/mesh", "--state-dir", dir + "/state", "--run-dir", dir + "/run",
			"--xds-address", "127.0.0.1:0", "--http-address", "",
		}
		main()
		return
	}
	dir := envoytest.ShortDir(t)
	if err := os.Mkdir(dir+"/mesh", 0o750); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, self, "-test.run=^TestServerLogsItsEnd$")
	cmd.Env = append(os.Environ(), "FAIRLEAD_TEST_SERVES="+dir)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var log []string
	for lines := bufio.NewScanner(stderr); lines.Scan(); {
		log = append(log, lines.Text())
		if strings.Contains(lines.Text(), `msg="control plane starting"`) {
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Error(err)
			}
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the server ended with %v", err)
	}
	has := func(words ...string) bool {
		return slices.ContainsFunc(log, func(line string) bool {
			return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) })
		})
	}
	if !has("level=INFO", `msg="control plane stopping"`, `reason="terminated signal received"`) || !has("level=INFO", `msg="control plane stopped"`) {
		t.Errorf("the log does not have the end:\n%s", strings.Join(log, "\n"))
	}
}
