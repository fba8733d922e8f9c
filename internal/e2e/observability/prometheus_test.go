package observability

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/meshtest"
)

// prometheus is a running Prometheus with the configuration of the example.
type prometheus struct {
	address string
	process *meshtest.Process
}

// pinned is the release of Prometheus that tools/prometheus installs.
var pinned = regexp.MustCompile(`(?m)^\s*github.com/prometheus/prometheus v(\S+)`)

// binary is the path of Prometheus.
func binary(t *testing.T) string {
	t.Helper()
	root := envoytest.ModuleRoot(t)
	b, err := os.ReadFile(filepath.Join(root, "tools", "prometheus", "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	version := pinned.FindSubmatch(b)
	if version == nil {
		t.Fatal("tools/prometheus/go.mod names no release")
	}
	p := filepath.Join(root, ".tools", "prometheus-"+string(version[1]), "prometheus")
	if _, err := os.Stat(p); err != nil {
		envoytest.Missing(t, "Prometheus is not at %q: run `make tools`", p)
	}
	return p
}

// start starts Prometheus with the files of the example. Only the server's address and the
// intervals are others.
func start(t *testing.T, m shop) *prometheus {
	t.Helper()
	example, dir := filepath.Join(envoytest.ModuleRoot(t), "examples", "observability"), t.TempDir()
	for _, name := range []string{"prometheus.yml", "alerts.yml"} {
		b, err := os.ReadFile(filepath.Join(example, name))
		if err != nil {
			t.Fatal(err)
		}
		text := string(b)
		if name == "prometheus.yml" {
			for from, to := range map[string]string{"127.0.0.1:15014": m.at(1, 15014), "_interval: 30s": "_interval: 1s"} {
				if !strings.Contains(text, from) {
					t.Fatalf("prometheus.yml has no %q", from)
				}
				text = strings.ReplaceAll(text, from, to)
			}
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p := &prometheus{address: m.at(1, 9090)}
	p.process = m.Start("prometheus", binary(t), "--config.file", filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path", filepath.Join(dir, "data"),
		"--web.listen-address", p.address)
	p.process.Eventually(envoytest.Patience, func() error { return p.get(t, "query", url.Values{"query": {"vector(1)"}}, nil) })
	return p
}

// get asks the API and decodes its data.
func (p *prometheus) get(t *testing.T, path string, args url.Values, data any) error {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+p.address+"/api/v1/"+path+"?"+args.Encode(), http.NoBody)
	if err != nil {
		return err
	}
	res, err := client().Do(req)
	if err != nil {
		return err
	}
	body, err := io.ReadAll(res.Body)
	if err = errors.Join(err, res.Body.Close()); err != nil {
		return err
	}
	answer := struct {
		Data  any
		Error string
	}{Data: data}
	if err := json.Unmarshal(body, &answer); err != nil {
		return err
	}
	if answer.Error != "" {
		return errors.New(answer.Error)
	}
	return nil
}

// sample is one line of an answer.
type sample struct {
	labels map[string]string
	value  float64
}

// query evaluates an expression now.
func (p *prometheus) query(t *testing.T, expr string) ([]sample, error) {
	t.Helper()
	var data struct {
		Result []struct {
			Metric map[string]string
			Value  [2]any
		}
	}
	if err := p.get(t, "query", url.Values{"query": {expr}}, &data); err != nil {
		return nil, fmt.Errorf("%s: %w", expr, err)
	}
	out := make([]sample, 0, len(data.Result))
	for _, r := range data.Result {
		v, err := strconv.ParseFloat(fmt.Sprint(r.Value[1]), 64)
		if err != nil {
			return nil, err
		}
		out = append(out, sample{r.Metric, v})
	}
	return out, nil
}

// values are the values of a label of series.
func (p *prometheus) values(t *testing.T, selector, label string) ([]string, error) {
	t.Helper()
	answer, err := p.query(t, "group by ("+label+") ("+selector+")")
	var out []string
	for _, s := range answer {
		if v := s.labels[label]; v != "" {
			out = append(out, v)
		}
	}
	slices.Sort(out)
	return out, err
}

// rateInterval is what Grafana makes of $__rate_interval: four times the interval of scrapes, and
// more on a machine that is busy.
const rateInterval = "30s"

// TestPrometheusHasWhatRulesAndDashboardsRead: a real Prometheus finds three agents by the
// example's configuration, evaluates every rule, and has an answer to every query of the
// dashboards of the example, and of Istio's as the table says.
func TestPrometheusHasWhatRulesAndDashboardsRead(t *testing.T) {
	t.Parallel()
	envoytest.Binary(t)
	binary(t)
	m := startShop(t)
	m.Server.Eventually(envoytest.Patience, func() error { // Prometheus asks once a minute
		var groups []struct{ Targets []string }
		if err := m.targets(t, &groups); err != nil || len(groups) != 3 {
			return fmt.Errorf("targets: %v, %w", groups, err)
		}
		return nil
	})
	p := start(t, m)
	m.load(t)
	p.process.Eventually(envoytest.Patience, func() error {
		up, err := p.query(t, `up == 1`)
		if err != nil || len(up) != 4 {
			return fmt.Errorf("up: %v, %w", up, err)
		}
		hosts, err := p.values(t, `up{job="fairlead-hosts", namespace="shop"} == 1`, "host")
		if !slices.Equal(hosts, []string{"orders", "pay", "web"}) {
			return fmt.Errorf("hosts: %v, %w", hosts, err)
		}
		return nil
	})
	var wanted []wantedQuery
	for _, d := range dashboards(t) {
		wanted = append(wanted, d.queries...)
	}
	istio := istioQueries(t)
	for _, q := range istio {
		if q.answer != "no" {
			wanted = append(wanted, wantedQuery{where: q.where(), expr: q.expr(), named: q.named(), variables: istioVariables(q.dashboard)})
		}
	}
	for _, s := range ruleSelectors(t) {
		wanted = append(wanted, wantedQuery{where: "alerts.yml", expr: s})
	}
	answered := map[int]bool{}
	p.process.Eventually(envoytest.Patience, func() error {
		var missing []string
		for i, q := range wanted {
			if answered[i] {
				continue
			}
			err := q.ask(t, p)
			answered[i] = err == nil
			if err != nil {
				missing = append(missing, fmt.Sprintf("%s: %s: %v", q.where, q.expr, err))
			}
		}
		if len(missing) > 0 {
			return fmt.Errorf("%d of %d queries have no answer:\n%s", len(missing), len(wanted), strings.Join(missing, "\n"))
		}
		return nil
	})
	// By now there was traffic of each kind: what still has no answer never has one.
	for _, q := range istio {
		w := wantedQuery{where: q.where(), expr: q.expr(), variables: istioVariables(q.dashboard)}
		if q.answer == "no" && w.ask(t, p) == nil {
			t.Errorf("%s: %s has an answer; the table says that it has none", w.where, w.expr)
		}
		w.named = true
		if q.answer == "unnamed" && w.ask(t, p) == nil {
			t.Errorf("%s: the lines of %s have names; the table says that they have none", w.where, w.expr)
		}
	}
	p.checkRules(t)
	m.AwaitLive("web", "orders", "pay")
}

// checkRules wants that each rule was evaluated without an error, and that none fires.
func (p *prometheus) checkRules(t *testing.T) {
	t.Helper()
	p.process.Eventually(envoytest.Patience, func() error {
		var data struct {
			Groups []struct {
				Rules []struct{ Name, Health, State, LastError string }
			}
		}
		if err := p.get(t, "rules", nil, &data); err != nil {
			return err
		}
		n := 0
		for _, g := range data.Groups {
			for _, r := range g.Rules {
				n++
				if r.Health != "ok" {
					return fmt.Errorf("the rule %s: %s %s", r.Name, r.Health, r.LastError)
				}
				if r.State == "firing" {
					t.Errorf("%s fires in a mesh that is well", r.Name)
				}
			}
		}
		if n < 10 {
			return fmt.Errorf("%d rules", n)
		}
		return nil
	})
}

// wantedQuery is a query with variables of Grafana that has to have an answer for some of their
// values.
type wantedQuery struct {
	where, expr string
	// named means that every label of a line has to have a value.
	named     bool
	variables []grafanaVariable
}

// grafanaVariable is a variable: the labels of series, or fixed values. With all it stands for all
// values at once.
type grafanaVariable struct {
	name, selector, label string
	fixed                 []string
	all                   bool
}

func (q wantedQuery) ask(t *testing.T, p *prometheus) error {
	t.Helper()
	exprs, err := q.resolve(t, p, q.expr, q.variables)
	if err != nil {
		return err
	}
	if len(exprs) == 0 {
		return errors.New("a variable has no values")
	}
	var errs []error
	for _, expr := range exprs {
		answer, err := p.query(t, strings.ReplaceAll(expr, "$__rate_interval", rateInterval))
		switch {
		case err != nil:
		case len(answer) == 0:
			err = errors.New("no answer")
		case !slices.ContainsFunc(answer, func(s sample) bool { return !math.IsNaN(s.value) }):
			err = errors.New("no answer is a number")
		case q.named && slices.ContainsFunc(answer, func(s sample) bool {
			return slices.Contains(slices.Collect(maps.Values(s.labels)), "") || len(s.labels) == 0
		}):
			err = fmt.Errorf("a line without a name: %v", answer)
		default:
			return nil
		}
		errs = append(errs, err)
	}
	return errs[0]
}

// resolve puts the values of variables in their places: one expression for each choice.
func (q wantedQuery) resolve(t *testing.T, p *prometheus, expr string, variables []grafanaVariable) ([]string, error) {
	t.Helper()
	if len(variables) == 0 {
		return []string{expr}, nil
	}
	v, rest := variables[0], slices.Clone(variables[1:])
	values := v.fixed
	if v.selector != "" {
		var err error
		if values, err = p.values(t, v.selector, v.label); err != nil {
			return nil, err
		}
	}
	if v.all && len(values) > 0 {
		for i := range values {
			values[i] = regexp.QuoteMeta(values[i])
		}
		values = []string{"(" + strings.ReplaceAll(strings.Join(values, "|"), `\`, `\\`) + ")"}
	}
	var out []string
	for _, value := range values {
		put := func(text string) string { return strings.ReplaceAll(text, "$"+v.name, value) }
		for i := range rest {
			rest[i].selector = put(variables[i+1].selector)
		}
		exprs, err := q.resolve(t, p, put(expr), rest)
		if err != nil {
			return nil, err
		}
		out = append(out, exprs...)
	}
	return out, nil
}

// exampleDashboard is a dashboard of the example, as Grafana reads it.
type exampleDashboard struct {
	file    string
	queries []wantedQuery
}

// labelValues is a query of a variable.
var labelValues = regexp.MustCompile(`^label_values\((.*), (\w+)\)$`)

func dashboards(t *testing.T) (out []exampleDashboard) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(envoytest.ModuleRoot(t), "examples", "observability", "dashboards", "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no dashboards: %v", err)
	}
	for _, file := range files {
		var d struct {
			Templating struct {
				List []struct {
					Name, Type string
					Query      any
					IncludeAll bool
				}
			}
			Panels []struct {
				Title, Type string
				Targets     []struct{ Expr string }
			}
		}
		b, err := os.ReadFile(file)
		if err == nil {
			err = json.Unmarshal(b, &d)
		}
		if err != nil {
			t.Fatal(err)
		}
		var variables []grafanaVariable
		for _, v := range d.Templating.List {
			if v.Type == "datasource" {
				continue
			}
			query, _ := v.Query.(map[string]any)
			found := labelValues.FindStringSubmatch(fmt.Sprint(query["query"]))
			if found == nil {
				t.Fatalf("%s: the query of %s is %v", file, v.Name, v.Query)
			}
			variables = append(variables, grafanaVariable{name: v.Name, selector: found[1], label: found[2], all: v.IncludeAll})
		}
		e := exampleDashboard{file: filepath.Base(file)}
		for _, panel := range d.Panels {
			for _, target := range panel.Targets {
				e.queries = append(e.queries, wantedQuery{where: e.file + ": " + panel.Title, expr: target.Expr, variables: variables})
			}
			if panel.Type != "row" && len(panel.Targets) == 0 {
				t.Errorf("%s: %s has no query", e.file, panel.Title)
			}
		}
		out = append(out, e)
	}
	return out
}

// istioQuery is what a query of a dashboard of Istio reads.
type istioQuery struct {
	answer                       string // yes, no, or unnamed: an answer whose lines have no names
	dashboard, row, panel        string
	metric, matchers, aggregated string
}

func (q istioQuery) where() string { return q.dashboard + ": " + q.row + ": " + q.panel }

func (q istioQuery) named() bool { return q.answer == "yes" && q.aggregated != "" }

// expr reads the metric with its matchers, by the labels.
func (q istioQuery) expr() string {
	return "sum by (" + q.aggregated + ") (" + q.metric + "{" + q.matchers + "})"
}

// istioQueries are those of testdata/istio-dashboards.txt.
func istioQueries(t *testing.T) (out []istioQuery) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "istio-dashboards.txt"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Split(strings.TrimSuffix(line, "\n"), " | ")
		if len(f) != 7 {
			t.Fatalf("%q has %d fields", line, len(f))
		}
		list := func(text string) string { return strings.Join(strings.Fields(strings.TrimPrefix(text, "-")), ", ") }
		out = append(out, istioQuery{f[0], f[1], f[2], f[3], f[4], list(f[5]), list(f[6])})
	}
	return out
}

// istioVariables are the variables of Istio's dashboards. Those that filter by a label are at All.
func istioVariables(dashboard string) []grafanaVariable {
	all := func(names ...string) (out []grafanaVariable) {
		for _, name := range names {
			out = append(out, grafanaVariable{name: name, fixed: []string{".+"}})
		}
		return out
	}
	reporter := grafanaVariable{name: "qrep", fixed: []string{"destination", "source"}}
	switch dashboard {
	case "service":
		return append(all("srccluster", "srcns", "srcwl", "dstcluster", "dstns", "dstwl"), reporter, grafanaVariable{name: "service", selector: "istio_requests_total", label: "destination_service"})
	case "workload":
		return append(all("srcns", "srcwl", "dstsvc"), reporter,
			grafanaVariable{name: "namespace", selector: "istio_requests_total", label: "destination_workload_namespace"},
			grafanaVariable{name: "workload", fixed: []string{"web", "orders"}})
	default:
		return nil
	}
}

// withoutScene are metrics of alerts that this mesh has no reason to have.
func withoutScene() map[string]string {
	return map[string]string{
		"fairlead_consul_available":     "there is no Consul",
		"fairlead_source_from_disk":     "there is no Consul",
		"fairlead_clock_offset_seconds": "it needs votes of hosts from three addresses",
	}
}

// metric is a metric with its matchers, in a rule.
var metric = regexp.MustCompile(`\b((?:fairlead|istio_agent|citadel|pilot)_[a-z_]+|up)(\{[^}]*\})?`)

// ruleSelectors are what the alerts read.
func ruleSelectors(t *testing.T) []string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(envoytest.ModuleRoot(t), "examples", "observability", "alerts.yml"))
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for line := range strings.Lines(string(b)) {
		if strings.Contains(line, "alert:") || strings.Contains(line, "summary:") || strings.Contains(line, "description:") {
			continue
		}
		for _, m := range metric.FindAllStringSubmatch(line, -1) {
			if withoutScene()[m[1]] == "" {
				found[m[0]] = true
			}
		}
	}
	if len(found) < 20 {
		t.Fatalf("the alerts read only %v", found)
	}
	return slices.SortedFunc(maps.Keys(found), cmp.Compare)
}
