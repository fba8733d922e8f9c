package faults

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/meshtest"
)

// ownDisk gives a host's agent, and those that follow it, state and run directories on one disk of 2 MiB.
// It returns a directory of the disk as this process sees it.
func (s *shop) ownDisk(host string) string {
	s.t.Helper()
	state, run := s.StateDir(host), s.RunDir(host)
	for _, dir := range []string{state, run} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			s.t.Fatal(err)
		}
	}
	const mount = `disk=$(mktemp -d) && mount -t tmpfs -o size=2m fairlead "$disk" && mkdir -m 700 "$disk/state" "$disk/run" &&
		mount --bind "$disk/state" "$0" && mount --bind "$disk/run" "$1" && echo "$disk" && exec sleep 600`
	ns, enter := []string{"--mount"}, []string{"--mount"}
	if os.Geteuid() != 0 {
		ns, enter = append(ns, "--user", "--map-root-user"), append(enter, "--user", "--preserve-credentials")
	}
	holder := exec.Command("unshare", append(ns, "sh", "-c", mount, state, run)...)
	out, err := holder.StdoutPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := holder.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = errors.Join(holder.Process.Kill(), holder.Wait()) })
	b := make([]byte, 4096)
	n, err := out.Read(b)
	if err != nil {
		envoytest.Missing(s.t, "this machine lets nobody mount a small disk: %v", err)
	}
	root := filepath.Join("/proc", strconv.Itoa(holder.Process.Pid), "root")
	i := slices.IndexFunc(s.hosts, func(h meshtest.Host) bool { return h.Name == host })
	s.hosts[i].Wrap = append([]string{"nsenter", "--target", strconv.Itoa(holder.Process.Pid)}, enter...)
	// Those who ask the agent are outside.
	if err := os.Symlink(filepath.Join(root, run, "admin.sock"), filepath.Join(run, "admin.sock")); err != nil {
		s.t.Fatal(err)
	}
	return filepath.Join(root, strings.TrimSpace(string(b[:n])))
}

// TestEnvoyEndsOnAFullDisk kills the Envoy of a host whose disk is full, and then Envoy and agent: both
// start with what is there, requests use the host again, and agent and server say what cannot be saved.
func TestEnvoyEndsOnAFullDisk(t *testing.T) {
	s := newShop(t)
	disk := s.ownDisk("orders-v1")
	s.evenly()
	s.start()
	load := s.client.StartLoad(t, s.url, 50)
	load.Wait(t, 100)
	free := fill(t, disk)
	back := func(pid int) int {
		t.Helper()
		began, now := time.Now(), 0
		envoytest.Eventually(t, envoytest.Patience, func() error {
			if now = s.EnvoyPID("orders-v1"); now == 0 || now == pid {
				return fmt.Errorf("process %d, was %d", now, pid)
			}
			if s.agents["orders-v1"].Ended() {
				t.Fatalf("the agent ended:\n%s", s.agents["orders-v1"].Log())
			}
			return nil
		})
		s.says("envoy.process.json could not be saved", "host-problem")
		s.awaitLive()
		s.awaitAnswerOf("orders-v1")
		t.Logf("named, and in use again, after %s", time.Since(began))
		return now
	}
	pid := s.EnvoyPID("orders-v1")
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	pid = back(pid)
	fairlead, _ := s.Binaries()
	check := append(slices.Clone(s.host("orders-v1").Wrap), fairlead, "agent", "check", "--run-dir", s.RunDir("orders-v1"), "--state-dir", s.StateDir("orders-v1"))
	out, err := exec.Command(check[0], check[1:]...).CombinedOutput()
	for _, want := range []string{s.RunDir("orders-v1") + " has 0 MiB", "make room", "envoy.process.json could not be saved", "no space left on device"} {
		if err == nil || !strings.Contains(string(out), want) {
			t.Errorf("agent check: %v, without %q:\n%s", err, want, out)
		}
	}
	s.agents["orders-v1"].Kill()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	s.restartAgent("orders-v1")
	pid = back(pid)
	load.Wait(t, 100)
	free()
	s.says("")
	load.Wait(t, 100)
	r := load.Stop()
	t.Logf("%d of %d requests failed %v", r.Failed, r.Good+r.Failed, r.Errors)
	if r.Failed > 55 {
		t.Errorf("%d of %d requests failed: %v", r.Failed, r.Good+r.Failed, r.Errors)
	}
	// The record counts again: the next agent takes the Envoy over.
	s.agents["orders-v1"].Kill()
	s.restartAgent("orders-v1")
	s.says("")
	if now := s.EnvoyPID("orders-v1"); now != pid {
		t.Errorf("the Envoy was replaced: %d, then %d", pid, now)
	}
}
