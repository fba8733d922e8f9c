package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const captured = `proxy-users: [21337]
workloads:
- name: web
  users: [22001]
  ports: [8080]
`

// TestCapturePlan prints the table, and what is wrong with settings, each with its exit code.
// It needs no root; with root it compares with the tables of this machine.
func TestCapturePlan(t *testing.T) {
	t.Parallel()
	plan := func(content string) (int, string, string) {
		t.Helper()
		path := filepath.Join(t.TempDir(), "capture.yaml")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return cli(t, "capture", "plan", "--capture-file", path)
	}
	code, out, errs := plan(captured)
	if code != 0 || errs != "" || !strings.Contains(out, "table inet fairlead {") || !strings.Contains(out, "redirect to :15006") || !strings.Contains(out, "# note: nobody listens at port 15001") {
		t.Errorf("%d %s\n%s", code, errs, out)
	}
	code, out, errs = plan(captured + "mode: ajar\nrules: []\n")
	if code != exitInvalid || out != "" || !strings.Contains(errs, `capture.yaml:7:1: there is no setting "rules" of capture`) {
		t.Errorf("%d %s\n%s", code, errs, out)
	}
	code, _, errs = plan(strings.Replace(captured, "8080", "22", 1))
	if code != exitInvalid || !strings.Contains(errs, "port 22 is never captured: it is sshd's") {
		t.Errorf("%d %s", code, errs)
	}
	code, _, errs = plan(strings.Replace(captured, "22001", "\"no\\e[31msuch\"", 1))
	if code != exitInvalid || !strings.Contains(errs, "there is no such user on this host") {
		t.Errorf("%d %s", code, errs)
	}
	wantPlain(t, errs)
	if code, _, errs := cli(t, "capture", "plan", "--capture-file", "/nonexistent"); code != exitFailed || !strings.Contains(errs, "/nonexistent") {
		t.Errorf("%d %s", code, errs)
	}
}

// TestCaptureRefusesOddTimes before anything is read or changed.
func TestCaptureRefusesOddTimes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ args, want string }{
		{"apply --confirm-within 0s", "write a time from 1s to 24h"},
		{"apply --confirm-within 25h", "write a time from 1s to 24h"},
		{"remove --wait -1s", "a time below zero"},
		{"confirm now", "unexpected argument"},
	} {
		if code, _, errs := cli(t, append([]string{"capture"}, strings.Fields(c.args)...)...); code != exitFailed || !strings.Contains(errs, c.want) {
			t.Errorf("%s: %d %s", c.args, code, errs)
		}
	}
}

// TestCaptureConfirmNeedsAnApply: nothing was applied.
func TestCaptureConfirmNeedsAnApply(t *testing.T) {
	t.Parallel()
	code, _, errs := cli(t, "capture", "confirm", "--capture-dir", t.TempDir())
	if code != exitInvalid || !strings.Contains(errs, "nothing to confirm: run `fairlead capture apply` first") {
		t.Errorf("%d %s", code, errs)
	}
}
