package traffic

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/meshtest"
)

// logged is a mesh whose proxies write lines that end with the path of the request to a file.
func logged(t *testing.T, path string, agent ...string) (p *pair, client *meshtest.Process) {
	t.Helper()
	p = newPair(t)
	p.clientH.Agent = append(p.clientH.Agent, agent...)
	config := filepath.Join(t.TempDir(), "mesh.yaml")
	text := fmt.Sprintf("accessLogFile: %s\naccessLogFormat: \"%s %%REQ(:AUTHORITY)%% end\\n\"\n", path, strings.Repeat("x", 8<<10))
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p.StartServer("--mesh-config", config)
	client, _ = p.startHosts()
	return p, client
}

// TestAgentsRotateAccessLogs: two agents of one machine rotate what both Envoys write, also the
// agent that comes after one that was killed. Nobody else can read the files.
func TestAgentsRotateAccessLogs(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "access.log")
	p, client := logged(t, path, "--access-log-max-mib", "1", "--access-log-files", "3")
	rotations := func() (n int, err error) {
		var s struct {
			AccessLogs struct {
				Rotations int      `json:"rotations"`
				Problems  []string `json:"problems"`
			} `json:"access_logs"`
		}
		text, err := p.Admin("client", "/v1/status")
		if err == nil {
			err = json.Unmarshal([]byte(text), &s)
		}
		if err == nil && len(s.AccessLogs.Problems) > 0 {
			err = fmt.Errorf("problems: %q", s.AccessLogs.Problems)
		}
		return s.AccessLogs.Rotations, err
	}
	load := func(process *meshtest.Process, until int) {
		t.Helper()
		process.Eventually(envoytest.Patience, func() error {
			for range 20 {
				if _, err := askHTTP(t.Context(), p.at(11, 9080), nil); err != nil {
					t.Fatal(err)
				}
			}
			if n, err := rotations(); err != nil || n < until {
				return fmt.Errorf("%d rotations, %w", n, err)
			}
			return nil
		})
	}
	load(client, 2)
	client.Kill()
	client = p.StartAgent(p.clientH, "")
	p.AwaitLive("client")
	load(client, 2)
	client.Stop() // it changes nothing any more
	names, err := filepath.Glob(path + "*")
	if err != nil || len(names) != 4 {
		t.Errorf("files: %q, %v; want the log and three rotated ones", names, err)
	}
	for _, name := range names {
		if fi, err := os.Stat(name); err != nil || fi.Mode().Perm()&^0o640 != 0 {
			t.Errorf("%s: %v, %v", name, fi, err)
		}
	}
	if log := client.Log(); !strings.Contains(log, "access log rotated") {
		t.Errorf("nothing about it in the agent's log:\n%s", log)
	}
}

// TestAccessLogInTheJournal: with --envoy-log -, the agent's standard output has each line of
// /dev/stdout, although Envoy could not open that if it were a socket.
func TestAccessLogInTheJournal(t *testing.T) {
	t.Parallel()
	p, client := logged(t, "/dev/stdout", "--envoy-log", "-")
	ask := func(n int) {
		t.Helper()
		for range n {
			if _, err := askHTTP(t.Context(), p.at(11, 9080), nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	lines := func(process *meshtest.Process) int { return strings.Count(process.Log(), "xx "+echoHost+" end\n") }
	ask(20)
	// Others were sent before, until the hosts were ready.
	client.Eventually(envoytest.Patience, func() error {
		if n := lines(client); n < 20 {
			return fmt.Errorf("%d lines", n)
		}
		return nil
	})
	before := lines(client)
	client.Kill()
	ask(10) // Envoy serves, and nobody writes its lines
	client = p.StartAgent(p.clientH, "")
	client.Eventually(envoytest.Patience, func() error {
		if n := lines(client); n < 10 {
			return fmt.Errorf("%d lines after the agent came back, %d before", n, before)
		}
		return nil
	})
}
