package faults

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
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

// agentStatus is what these tests read of an agent's status.
type agentStatus struct {
	Identities []struct {
		NotAfter time.Time `json:"not_after"`
	} `json:"identities"`
	LastError string `json:"last_error"`
	JoinToken *struct {
		State string `json:"state"`
	} `json:"join_token"`
	Unsaved []struct {
		File string `json:"file"`
	} `json:"unsaved"`
}

func (s *shop) agentStatus() (st agentStatus, err error) {
	out, err := s.Admin("web", "/v1/status")
	if err == nil {
		err = json.Unmarshal([]byte(out), &st)
	}
	return st, err
}

// smallDisk gives a host's agent a state directory on a disk of its own, in a mount
// namespace; it returns the directory as this process sees it, once the agent runs.
func (s *shop) smallDisk(host string) func() string {
	s.t.Helper()
	dir := s.StateDir(host)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		s.t.Fatal(err)
	}
	wrap := []string{"unshare", "--mount", "sh", "-c", `mount -t tmpfs -o size=1m fairlead "$0" && exec "$@"`, dir}
	if os.Geteuid() != 0 {
		wrap = slices.Insert(wrap, 1, "--user", "--map-root-user")
	}
	if out, err := exec.Command(wrap[0], append(slices.Clone(wrap[1:]), "true")...).CombinedOutput(); err != nil {
		envoytest.Missing(s.t, "this machine lets nobody mount a small disk: %v: %s", err, out)
	}
	i := slices.IndexFunc(s.hosts, func(h meshtest.Host) bool { return h.Name == host })
	s.hosts[i].Wrap = wrap
	return func() string {
		return filepath.Join("/proc", strconv.Itoa(s.agents[host].PID()), "root", dir)
	}
}

// fill leaves no byte of a disk, and returns what gives the space back.
func fill(t *testing.T, dir string) (free func()) {
	t.Helper()
	path := filepath.Join(dir, "filler")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	zeros, err := os.Open("/dev/zero")
	if err != nil {
		t.Fatal(err)
	}
	_, full := io.Copy(f, zeros)
	if err := errors.Join(f.Close(), zeros.Close()); err != nil || !errors.Is(full, syscall.ENOSPC) {
		t.Fatalf("filling the disk: %v, %v", full, err)
	}
	return func() {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}

// loads sends requests on connections that are kept and on new ones, 200 a second.
func (s *shop) loads() []*meshtest.Load {
	s.t.Helper()
	return []*meshtest.Load{s.client.StartLoad(s.t, s.url, 100), s.client.Fresh().StartLoad(s.t, s.url, 100)}
}

// TestDiskOfAHostIsFull fills the disk of a host until after its certificates have
// ended: no request fails, the agent reports it, and everything is saved when there is
// space again.
func TestDiskOfAHostIsFull(t *testing.T) {
	s := newShop(t)
	disk := s.smallDisk("web")
	// Envoys leave a connection a twentieth of that before the other side ends it: that is
	// more than a busy machine keeps one waiting.
	s.start("--certificate-ttl", "20s")
	loads := s.loads()
	loads[0].Wait(t, 100)
	before, err := s.agentStatus()
	if err != nil {
		t.Fatal(err)
	}
	free := fill(t, disk())
	ends := time.Time{}
	for _, id := range before.Identities {
		if id.NotAfter.After(ends) {
			ends = id.NotAfter
		}
	}
	envoytest.Eventually(t, envoytest.Patience, func() error {
		st, err := s.agentStatus()
		if err != nil {
			return err
		}
		if time.Now().Before(ends.Add(time.Second)) {
			return errors.New("the certificates have not ended")
		}
		for _, want := range []string{"host.json", "shop_web.sealed"} {
			if !slices.ContainsFunc(st.Unsaved, func(u struct {
				File string `json:"file"`
			},
			) bool {
				return u.File == want
			}) {
				return fmt.Errorf("%s is not reported: %+v", want, st)
			}
		}
		return nil
	})
	if out, err := s.Admin("web", "/readyz"); err != nil || !strings.Contains(out, "host.json could not be saved") {
		t.Errorf("readiness: %v\n%s", err, out)
	}
	if out, err := s.Admin("web", "/metrics"); err != nil || numbers(out, " ")["fairlead_agent_unsaved_files"] < 2 {
		t.Errorf("metrics: %v: %d", err, numbers(out, " ")["fairlead_agent_unsaved_files"])
	}
	free()
	envoytest.Eventually(t, envoytest.Patience, func() error {
		st, err := s.agentStatus()
		if err == nil && len(st.Unsaved) > 0 {
			err = fmt.Errorf("not saved: %+v", st.Unsaved)
		}
		return err
	})
	for _, l := range loads {
		unharmed(t, l)
	}
	s.noRejections()
}

// TestTokenForARemovedHost removes a host and gives its agent a new token, by the
// command that the refusal names: no request fails, and nothing is restarted.
func TestTokenForARemovedHost(t *testing.T) {
	s := newShop(t)
	s.start()
	pid := s.EnvoyPID("web")
	loads := s.loads()
	loads[0].Wait(t, 100)
	if _, err := s.CLI("host", "remove", "web", "--run-dir", s.RunDir("server")); err != nil {
		t.Fatal(err)
	}
	envoytest.Eventually(t, envoytest.Patience, func() error {
		st, err := s.agentStatus()
		if err == nil && !strings.Contains(st.LastError, "refused") {
			err = fmt.Errorf("the last error is %q", st.LastError)
		}
		return err
	})
	token := filepath.Join(s.Dir, "web.token")
	if err := os.WriteFile(token+".new", []byte(s.Token("--host", "web", "--workload", "shop/web")), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(token+".new", token); err != nil {
		t.Fatal(err)
	}
	envoytest.Eventually(t, envoytest.Patience, func() error {
		st, err := s.agentStatus()
		if err == nil && (st.JoinToken == nil || st.JoinToken.State != "redeemed" || st.LastError != "") {
			err = fmt.Errorf("the join token is not redeemed: %+v", st)
		}
		return err
	})
	s.awaitLive()
	loads[1].Wait(t, 100)
	for _, l := range loads {
		unharmed(t, l)
	}
	if now := s.EnvoyPID("web"); now != pid {
		t.Errorf("the Envoy was replaced: %d, then %d", pid, now)
	}
	s.noRejections()
}
