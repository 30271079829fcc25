package peers;

import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;

/**
 * Sends until told to stop, over broker restarts.
 *
 * <p>Each lane is one queue with numbers 0, 1, 2, ... in bodies "lane:number". A number is sent again until it
 * is acknowledged, so that a lane is in order, with repetitions only next to each other.
 */
final class Load implements Driver.Held {
    private static final long PAUSE_AFTER_FAILURE_MILLIS = 20;
    private final List<DefaultMQProducer> producers = new ArrayList<>();
    private final List<Thread> threads = new ArrayList<>();
    private final String topic;
    private final int size;
    private final long paceMillis;
    private final long[] acked;
    private final Map<String, Integer> statuses = new TreeMap<>();
    private final Map<String, Integer> errors = new TreeMap<>();
    private volatile boolean stopped;

    private Load(JSONObject args) throws Exception {
        topic = args.getString("topic");
        size = args.getIntValue("size");
        paceMillis = args.getLongValue("paceMs");
        acked = new long[args.getIntValue("lanes")];
        int count = Math.min(acked.length, Math.max(1, args.getIntValue("producers")));
        for (int i = 0; i < count; i++) {
            DefaultMQProducer producer = new DefaultMQProducer(args.getString("group"));
            Producers.configure(producer, args);
            producer.start();
            producers.add(producer);
        }
        for (int i = 0; i < count; i++) {
            int first = i;
            Thread thread = new Thread(() -> run(producers.get(first), first), "load-" + i);
            thread.setDaemon(true);
            threads.add(thread);
            thread.start();
        }
    }

    static void register(Map<String, Driver.Op> ops) {
        ops.put("load.start", args -> Driver.hold("load", new Load(args)));
        ops.put("load.progress", args -> load(args).progress());
        ops.put("load.wait", args -> load(args).await(args));
        ops.put("load.stop", args -> {
            load(args).join();
            return load(args).progress();
        });
    }

    private static Load load(JSONObject args) {
        return (Load) Driver.held(args);
    }

    @Override
    public Object target() {
        return this;
    }

    @Override
    public void shutdown() throws Exception {
        join();
        producers.forEach(DefaultMQProducer::shutdown);
    }

    private void join() throws InterruptedException {
        stopped = true;
        for (Thread thread : threads) {
            thread.join();
        }
    }

    private void run(DefaultMQProducer producer, int first) {
        while (!stopped) {
            for (int lane = first; lane < acked.length; lane += producers.size()) {
                try {
                    int queue = lane;
                    Message message = new Message(topic, body(lane));
                    SendResult result = producer.send(
                        message, (queues, sent, arg) -> queues.get(queue % queues.size()), null);
                    note(lane, result);
                    pause(paceMillis);
                } catch (Exception error) {
                    note(error);
                    pause(PAUSE_AFTER_FAILURE_MILLIS);
                }
            }
        }
    }

    private static void pause(long millis) {
        try {
            if (millis > 0) {
                Thread.sleep(millis);
            }
        } catch (InterruptedException stopping) {
            Thread.currentThread().interrupt();
        }
    }

    private synchronized byte[] body(int lane) {
        byte[] text = (lane + ":" + acked[lane] + ":").getBytes(StandardCharsets.US_ASCII);
        byte[] body = Arrays.copyOf(text, Math.max(size, text.length));
        Arrays.fill(body, text.length, body.length, (byte) '.');
        return body;
    }

    private synchronized void note(int lane, SendResult result) {
        acked[lane]++;
        statuses.merge(result.getSendStatus().name(), 1, Integer::sum);
        notifyAll();
    }

    private synchronized void note(Exception error) {
        Throwable cause = error.getCause() == null ? error : error.getCause();
        errors.merge(cause.getClass().getSimpleName(), 1, Integer::sum);
    }

    /** Waits for so many more acknowledgements than there are now. */
    private synchronized Object await(JSONObject args) throws InterruptedException {
        long wanted = total() + args.getLongValue("more");
        long deadline = System.nanoTime() + args.getLongValue("timeoutMs") * 1_000_000;
        while (total() < wanted && System.nanoTime() < deadline) {
            wait(100);
        }
        return total() >= wanted;
    }

    private long total() {
        return Arrays.stream(acked).sum();
    }

    private synchronized Object progress() {
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("acked", acked.clone());
        result.put("total", total());
        result.put("statuses", new TreeMap<>(statuses));
        result.put("errors", new TreeMap<>(errors));
        return result;
    }
}
