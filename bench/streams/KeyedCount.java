// The peer: the same kind of work in Kafka Streams, exactly_once_v2, commit 100 ms, one stream thread, RocksDB with a
// changelog, caching as the DSL has it by default.
//
// count:  per entity one counter in the store; every record goes on with the headers that registration writes.
//         As in registration a record's entity is found in its topic, looked up, and its payload passed unchanged.
// batch:  per entity one open batch in the store; a record joins it, and closes it first if it is older than a second.
//         A fraction of what batching does: no event time, no memory of duplicates, no timers, no counters.
//
// Arguments: bootstrap servers, application id, state folder, input topic, output topic, count|batch.

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.Headers;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.processor.api.RecordMetadata;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

public final class KeyedCount {
    static final String STORE = "store";
    static final long TIMEOUT_MS = 1000;

    static byte[] utf8(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static String header(Headers headers, String name) {
        Header header = headers.lastHeader(name);
        return header == null ? "" : new String(header.value(), StandardCharsets.UTF_8);
    }

    abstract static class Stage implements Processor<byte[], byte[], byte[], byte[]> {
        ProcessorContext<byte[], byte[]> context;
        KeyValueStore<byte[], byte[]> store;

        @Override
        public void init(ProcessorContext<byte[], byte[]> context) {
            this.context = context;
            this.store = context.getStateStore(STORE);
        }

        byte[] id() {
            RecordMetadata at = context.recordMetadata().orElseThrow();
            return utf8("peer:" + at.partition() + ":" + at.offset() + ":0");
        }
    }

    static final class Count extends Stage {
        @Override
        public void process(Record<byte[], byte[]> record) {
            String topic = header(record.headers(), "topic");
            int end = topic.indexOf("/m/");
            if (end < 0) {
                return;
            }
            byte[] entity = utf8(topic.substring(0, end));
            byte[] known = store.get(entity);
            long count = known == null ? 0 : ByteBuffer.wrap(known).getLong();
            store.put(entity, ByteBuffer.allocate(8).putLong(count + 1).array());
            Headers headers = new RecordHeaders();
            headers.add("kind", utf8("data"));
            headers.add("receipt_time", utf8(Long.toString(record.timestamp())));
            headers.add("entity", entity);
            headers.add("topic", utf8(topic));
            headers.add("channel", utf8(topic.substring(end + 1)));
            headers.add("id", id());
            context.forward(record.withHeaders(headers));
        }
    }

    static final class Batch extends Stage {
        @Override
        public void process(Record<byte[], byte[]> record) {
            if (!header(record.headers(), "kind").equals("data")) {
                return;
            }
            byte[] entity = utf8(header(record.headers(), "entity"));
            long now = Long.parseLong(header(record.headers(), "receipt_time"));
            byte[] open = store.get(entity);
            if (open != null && now - ByteBuffer.wrap(open).getLong() >= TIMEOUT_MS) {
                Headers headers = new RecordHeaders();
                headers.add("id", id());
                byte[] document = new byte[open.length - 8];
                System.arraycopy(open, 8, document, 0, document.length);
                context.forward(new Record<>(entity, document, record.timestamp(), headers));
                open = null;
            }
            ByteBuffer joined = ByteBuffer.allocate((open == null ? 8 : open.length) + record.value().length + 1);
            if (open == null) {
                joined.putLong(now);
            } else {
                joined.put(open);
            }
            store.put(entity, joined.put(record.value()).put((byte) '\n').array());
        }
    }

    public static void main(String[] args) {
        Properties settings = new Properties();
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, args[0]);
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, args[1]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, args[2]);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 100);
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 1);
        settings.put(StreamsConfig.consumerPrefix(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG), "earliest");
        settings.put(StreamsConfig.producerPrefix(ProducerConfig.TRANSACTION_TIMEOUT_CONFIG), 120000);
        Topology topology = new Topology();
        topology.addSource("in", new ByteArrayDeserializer(), new ByteArrayDeserializer(), args[3]);
        boolean batch = args[5].equals("batch");
        topology.addProcessor("stage", () -> batch ? new Batch() : new Count(), "in");
        topology.addStateStore(
                Stores.keyValueStoreBuilder(
                                Stores.persistentKeyValueStore(STORE), Serdes.ByteArray(), Serdes.ByteArray())
                        .withCachingEnabled()
                        .withLoggingEnabled(Map.of()),
                "stage");
        topology.addSink("out", args[4], new ByteArraySerializer(), new ByteArraySerializer(), "stage");
        KafkaStreams streams = new KafkaStreams(topology, settings);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(Duration.ofSeconds(10))));
        streams.start();
    }
}
