package observability

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// version is the release of Prometheus that tools/prometheus pins: v0.305.0 is 3.5.0.
const version = "0.305.0"

func promtool(t *testing.T, args ...string) {
	t.Helper()
	if testing.Short() {
		t.Skip("runs promtool: not in -short")
	}
	p := filepath.Join(envoytest.ModuleRoot(t), ".tools", "prometheus-"+version, "promtool")
	if _, err := os.Stat(p); err != nil {
		envoytest.Missing(t, "promtool is not at %q: run `make tools`", p)
	}
	out, err := exec.CommandContext(t.Context(), p, args...).CombinedOutput()
	if err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func TestConfigurationIsValid(t *testing.T) {
	t.Parallel()
	promtool(t, "check", "config", "--lint=all", "--lint-fatal", "prometheus.yml")
}

func TestAlertsFire(t *testing.T) {
	t.Parallel()
	promtool(t, "test", "rules", "alerts_test.yml")
}

func read[T any](t *testing.T, file string) (out T) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(b, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestEveryAlertIsTested: for each metric of an alert there is a test in which the alert fires
// with no other metric that alone would do, and one in which it is quiet.
func TestEveryAlertIsTested(t *testing.T) {
	t.Parallel()
	rules := read[struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr string
				Labels      map[string]string
			}
		}
	}](t, "alerts.yml")
	tests := read[struct {
		Tests []struct {
			Name  string
			Input []struct{ Series string } `yaml:"input_series"`
			Query []struct {
				Expr    string
				Samples []struct{ Labels string } `yaml:"exp_samples"`
			} `yaml:"promql_expr_test"`
		}
	}](t, "alerts_test.yml")
	fires, quiet := map[string]string{}, map[string]bool{}
	for _, c := range tests.Tests {
		alert, _, _ := strings.Cut(c.Name, " ")
		for _, q := range c.Query {
			if !strings.Contains(q.Expr, `alertname="`+alert+`"`) {
				t.Errorf("the test %q is of another alert: %s", c.Name, q.Expr)
			}
			if len(q.Samples) == 0 {
				quiet[alert] = true
				continue
			}
			for _, in := range c.Input {
				fires[alert] += in.Series + "\n"
			}
		}
	}
	b, err := os.ReadFile(filepath.Join(envoytest.ModuleRoot(t), "docs", "reference-operations.md"))
	if err != nil {
		t.Fatal(err)
	}
	reference := string(b) // a test holds the metrics there against the sources
	metric := regexp.MustCompile(`\b(?:fairlead|istio_agent|citadel|pilot)_[a-z_]+\b`)
	reason := regexp.MustCompile(`reason=~?"([^"]+)"`)
	n := 0
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			n++
			if !quiet[r.Alert] || fires[r.Alert] == "" {
				t.Errorf("%s has no test in which it fires, or none in which it is quiet", r.Alert)
			}
			if s := r.Labels["severity"]; s != "page" && s != "ticket" {
				t.Errorf("%s has the severity %q", r.Alert, s)
			}
			for _, name := range metric.FindAllString(r.Expr, -1) {
				if !strings.Contains(fires[r.Alert], name+"{") {
					t.Errorf("%s does not fire for %s in any test", r.Alert, name)
				}
				if !strings.Contains(reference, "`"+name) {
					t.Errorf("%s reads the metric %s, which the reference does not have", r.Alert, name)
				}
			}
			for _, m := range reason.FindAllStringSubmatch(r.Expr, -1) {
				for one := range strings.SplitSeq(m[1], "|") {
					if !strings.Contains(reference, "| `"+one+"` |") {
						t.Errorf("%s reads the reason %q, which the reference does not have", r.Alert, one)
					}
				}
			}
		}
	}
	if n < 10 {
		t.Errorf("found %d alerts", n)
	}
}

// TestVersionIsPinned compares the release of the tests with the one that `make tools` installs.
func TestVersionIsPinned(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile(filepath.Join(envoytest.ModuleRoot(t), "tools", "prometheus", "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(b), "github.com/prometheus/prometheus v"+version+" ") {
		t.Errorf("tools/prometheus/go.mod has another version than %s", version)
	}
}
