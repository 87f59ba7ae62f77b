package mapping

// Metrics are the mapping's counters since its start, under the names that
// Lambda publishes in the groups EventCount, ErrorCount and KafkaMetrics, and
// the lag at the moment.
type Metrics struct {
	// EventCount: records.
	PolledEventCount                        int64
	InvokedEventCount                       int64
	FailedInvokeEventCount                  int64
	DroppedEventCount                       int64
	OnFailureDestinationDeliveredEventCount int64
	// ErrorCount.
	PollingErrorCount int64
	InvokeErrorCount  int64
	CommitErrorCount  int64
	// Invocations counts events sent, retries included, duplicates not.
	Invocations int64
	// KafkaMetrics: offsets between what is committed and the end of the
	// partitions, as of the last poll. OffsetLag is the metric of that name:
	// the largest of a partition.
	OffsetLag    int64
	MaxOffsetLag int64
	SumOffsetLag int64
}

// Metrics are the counters at this moment.
func (m *Mapping) Metrics() Metrics {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := m.metrics
	for _, p := range m.partitions {
		lag := max(0, p.highWatermark-max(0, p.committed))
		out.MaxOffsetLag = max(out.MaxOffsetLag, lag)
		out.SumOffsetLag += lag
	}
	out.OffsetLag = out.MaxOffsetLag
	return out
}

func (m *Mapping) count(change func(*Metrics)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change(&m.metrics)
}
