package metrics

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// FuzzMerge: whatever two parts say, the page is valid for Prometheus's parser, and the second
// part changes nothing of what the first one says.
func FuzzMerge(f *testing.F) {
	for _, s := range []string{
		"# HELP a help\n# TYPE a counter\na 1\na{b=\"c\"} 2 3\n",
		"# TYPE h histogram\nh_bucket{le=\"1\"} 1\nh_bucket{le=\"+Inf\"} 2\nh_sum 3\nh_count 2\n",
		"# TYPE h_count gauge\nh_count 5\n# TYPE h histogram\nh_bucket{le=\"x\"} 1\n",
		"# TYPE s summary\ns{quantile=\"0.5\"} 1\ns_sum 1\ns_count 1\n# TYPE s counter\n",
		"a{b=\"\\\"\\n\\\\\",c=\"}\"} NaN\na{b=\"1\",b=\"2\"} 1\na{b=\"\\x\"} 1\na{b=\"1} 1\n",
		"# HELP a \\x\n# TYPE a strange\na 1 # {trace=\"1\"} 2\n# EOF\n",
		"istio_requests_total{reporter=\"source\"} 99\n# TYPE istio_request_bytes gauge\n",
		"a 0x1p-2\na 1_0\na\t1\n a 1\na{ b = \"c\" , } 1\n\xff 1\na{b=\"\xff\"} 1\n{\"a\"} 1\n",
	} {
		f.Add(s, s)
		f.Add(s, "# TYPE a gauge\na 1\n")
	}
	f.Fuzz(func(t *testing.T, first, second string) {
		page := merged(first)
		both := merged(first, second)
		if !strings.HasPrefix(both, page) {
			t.Errorf("the second part changed the first:\n%s\n%s", page, both)
		}
		alone, together := parsePage(t, page), parsePage(t, both)
		for name, family := range alone {
			if diff := cmp.Diff(family.String(), together[name].String()); diff != "" {
				t.Errorf("%s: %s", name, diff)
			}
		}
		if together["istio_requests_total"] != nil {
			t.Error("a part says what the agent counts")
		}
	})
}

func merged(pages ...string) string {
	var out bytes.Buffer
	m := newMerger(&out)
	m.reserve("istio_requests_total", "counter")
	for _, page := range pages {
		m.begin()
		_, _ = eachLine(strings.NewReader(page), maxApp, m.line)
	}
	return out.String()
}

// TestMergeLeavesOutWhatHidesOthers: a line of an application must not have Prometheus give up the
// whole page, nor say what only Prometheus or the agent says.
func TestMergeLeavesOutWhatHidesOthers(t *testing.T) {
	t.Parallel()
	for name, line := range map[string]string{
		"negative time": "a 1 -5", "signed time": "a{b=\"c\"} 1 +5",
		"another name": "a{__name__=\"istio_requests_total\"} 1", "another address": "a{b=\"c\",__address__=\"d\"} 1",
		"up": "up 1", "type of up": "# TYPE up counter", "scrape": "scrape_duration_seconds 0", "agent": "fairlead_agent_not_there 1", "type of the agent's": "# TYPE fairlead_x gauge",
		"zero byte": "a 1 5\x00",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := merged("x 1\n" + line + "\ny 2\n"); got != "x 1\ny 2\n" {
				t.Errorf("the page is %q", got)
			}
		})
	}
}

// TestMergeKeepsWhatIsValid: the lines of usual exporters are on the page as they were.
func TestMergeKeepsWhatIsValid(t *testing.T) {
	t.Parallel()
	for name, page := range map[string]string{
		"plain":     "# HELP http_requests_total Requests.\n# TYPE http_requests_total counter\nhttp_requests_total{code=\"200\",method=\"get\"} 1027 1395066363000\nhttp_requests_total{code=\"400\",method=\"get\"} 3\n",
		"escapes":   "msdos_file_access_time_seconds{path=\"C:\\\\DIR\\\\FILE.TXT\",error=\"Cannot find file:\\n\\\"FILE.TXT\\\"\"} 1.458255915e9\n",
		"infinite":  "something_weird{problem=\"division by zero\"} +Inf 3982045\n",
		"histogram": "# TYPE d histogram\nd_bucket{le=\"0.05\"} 24054\nd_bucket{le=\"+Inf\"} 144320\nd_sum 53423\nd_count 144320\n",
		"summary":   "# TYPE r summary\nr{quantile=\"0.01\"} 3102\nr_sum 1.7560473e+07\nr_count 2693\n",
		"blanks":    "metric { a = \"b\" , } 1\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(page, merged(page)); diff != "" {
				t.Error(diff)
			}
		})
	}
	// What OpenMetrics adds, and lines that end in CR.
	want := "# TYPE foo untyped\nfoo_total{a=\"b\"} 17.0 1520879607\nbar 1\n"
	if diff := cmp.Diff(want, merged("# TYPE foo info\n# UNIT foo seconds\nfoo_total{a=\"b\"} 17.0 1520879607 # {id=\"x\"} 0.5\nbar 1\r\n# EOF\n")); diff != "" {
		t.Error(diff)
	}
}

// TestFirstPartKeepsAFamily: names that two parts have are those of the first, and what is left
// out is counted.
func TestFirstPartKeepsAFamily(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	m := newMerger(&out)
	m.reserve("istio_request_bytes", "histogram")
	for _, page := range []string{
		"# TYPE a counter\na 1\n",
		"# TYPE a gauge\na 2\nb 1\nistio_request_bytes_bucket{le=\"1\"} 5\nistio_request_bytes_count 7\nnot a metric\n",
	} {
		m.begin()
		_, _ = eachLine(strings.NewReader(page), maxApp, m.line)
	}
	if diff := cmp.Diff("# TYPE a counter\na 1\nb 1\n", out.String()); diff != "" {
		t.Error(diff)
	}
	if m.dropped != 5 {
		t.Errorf("%d lines were left out", m.dropped)
	}
}

// TestLongLinesAndPages: a line that is too long is skipped, and a page that is too large ends.
func TestLongLinesAndPages(t *testing.T) {
	t.Parallel()
	var got []string
	take := func(line []byte) { got = append(got, string(line)) }
	long, err := eachLine(strings.NewReader("a 1\nb{c=\""+strings.Repeat("x", 3*maxLine)+"\"} 2\nc 3"), 1<<30, take)
	if diff := cmp.Diff([]string{"a 1", "c 3"}, got); diff != "" || long != 1 || err != nil {
		t.Errorf("%d too long, %v: %s", long, err, diff)
	}
	if _, err := eachLine(io.LimitReader(zeros{}, 1<<30), 1<<20, take); err == nil {
		t.Error("a page without end is read")
	}
	got = nil
	if _, err := eachLine(strings.NewReader("a 1\nb 2\n"), 8, take); err != nil || len(got) != 2 {
		t.Errorf("a page as large as the limit: %v, %q", err, got)
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = '\n'
	}
	return len(b), nil
}

// FuzzLabels: labels are written so that Prometheus's parser reads the same ones.
func FuzzLabels(f *testing.F) {
	for _, s := range []string{"", "a", `"`, `\`, `\"`, "\n", "a;b;c", `",x="y`, "\xff", strings.Repeat("é", 2000), "}", "{", ",", `\n`} {
		f.Add(s, s)
	}
	f.Fuzz(func(t *testing.T, peer, flags string) {
		for _, side := range []reporter{source, destination} {
			o := observed{reporter: side, peer: peer, principal: flags, service: peer, code: flags, flags: flags, grpc: peer, removed: flags, further: []label{{"extra", peer}, {flags, peer}}}
			labels := o.complete(testWorkload())
			line := append(append([]byte("m{"), appendLabels(nil, labels)...), "} 1\n"...)
			p := expfmt.NewTextParser(model.LegacyValidation)
			families, err := p.TextToMetricFamilies(bytes.NewReader(line))
			if err != nil {
				t.Fatalf("%v: %q", err, line)
			}
			got := families["m"].GetMetric()[0].GetLabel()
			if len(got) != len(labels) {
				t.Fatalf("%d labels became %d", len(labels), len(got))
			}
			for i, l := range labels {
				if got[i].GetName() != l.name || got[i].GetValue() != l.value {
					t.Errorf("%q became %q=%q", l, got[i].GetName(), got[i].GetValue())
				}
			}
			if back, ok := parseLabels(appendLabels(nil, labels)); !ok || !cmp.Equal(labels, back, cmp.AllowUnexported(label{})) {
				t.Errorf("%q became %q", labels, back)
			}
		}
	})
}
