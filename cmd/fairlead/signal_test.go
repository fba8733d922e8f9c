package main

import (
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
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
	case <-time.After(20 * time.Second):
		t.Error("it still waits for its input after SIGTERM")
		_ = cmd.Process.Kill()
		<-ended
	}
}
