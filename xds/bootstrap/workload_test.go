package bootstrap_test

import (
	"maps"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/xds/bootstrap"
)

// TestWorkloadInMetadata: what is written is read, and what an object says of the workload does
// not count.
func TestWorkloadInMetadata(t *testing.T) {
	t.Parallel()
	for _, want := range []bootstrap.Workload{
		{Name: "orders-v1", Namespace: "shop", CanonicalName: "orders", CanonicalRevision: "v1", App: "orders", Version: "v1", Cluster: "Kubernetes"},
		{Name: "orders", Namespace: "shop", CanonicalName: "orders", CanonicalRevision: "latest", Cluster: "Kubernetes"},
		{Name: `a"b\c`, Namespace: "shop", CanonicalName: "{}", CanonicalRevision: "latest", Cluster: "Kubernetes"},
	} {
		metadata := map[string]string{
			"ISTIO_META_WORKLOAD_NAME": "another", "ISTIO_METAJSON_LABELS": `{"app":"another","version":"another"}`, "ISTIO_META_NAMESPACE": "another", "KEPT": "yes",
		}
		want.SetMetadata(metadata)
		got, err := bootstrap.WorkloadOf(metadata)
		if err != nil || got != want {
			t.Errorf("read %+v, %v; want %+v", got, err, want)
		}
		if metadata["KEPT"] != "yes" {
			t.Errorf("lost what is not about the workload: %v", metadata)
		}
	}
}

// TestUnusableWorkload: a text that could break a metric or a log is refused.
func TestUnusableWorkload(t *testing.T) {
	t.Parallel()
	good := map[string]string{"ISTIO_META_WORKLOAD_NAME": "orders"}
	for key, value := range map[string]string{
		"ISTIO_META_WORKLOAD_NAME": "a\nb",
		"ISTIO_META_CLUSTER_ID":    strings.Repeat("a", 1000),
		"ISTIO_METAJSON_LABELS":    `{"app":"a\u0000b"}`,
		"ISTIO_META_NAMESPACE":     "a\x1bb",
	} {
		metadata := maps.Clone(good)
		metadata[key] = value
		if w, err := bootstrap.WorkloadOf(metadata); err == nil {
			t.Errorf("%s=%.40q was read as %+v", key, value, w)
		}
	}
	if w, err := bootstrap.WorkloadOf(map[string]string{"ISTIO_METAJSON_LABELS": "[]"}); err == nil {
		t.Errorf("a list was read as %+v", w)
	}
	if _, err := bootstrap.WorkloadOf(nil); err != nil {
		t.Error(err)
	}
}
